"""Query parameters, read strictly: a filter that is misspelt must not list everything."""

from __future__ import annotations

import re
from collections.abc import Collection

from rest_framework.request import Request

from foundation.http_api.problems import parameter_problem


def allow_only(request: Request, names: Collection[str]) -> None:
    """Raises Problem 400 for a parameter that does not exist."""
    for name in request.query_params:
        if name not in names:
            raise parameter_problem(name[:100], "There is no such parameter.", code="unknown_parameter")


def text_parameter(request: Request, name: str, *, max_length: int = 64) -> str | None:
    value = request.query_params.get(name)
    if value is None:
        return None
    if not 0 < len(value) <= max_length or "\0" in value or _half_surrogate(value):
        raise parameter_problem(name, f"Must be 1 to {max_length} characters, none of them NUL.")
    return value


def choice_parameter(request: Request, name: str, choices: Collection[str]) -> str | None:
    value = request.query_params.get(name)
    if value is not None and value not in choices:
        raise parameter_problem(name, f"Must be one of {', '.join(choices)}.")
    return value


def whole_parameter(request: Request, name: str, *, most: int, default: int) -> int:
    """1 to most."""
    value = request.query_params.get(name)
    if value is None:
        return default
    if not re.match(r"[0-9]{1,9}\Z", value) or not 1 <= int(value) <= most:
        raise parameter_problem(name, f"Must be a whole number from 1 to {most}.")
    return int(value)


def text_schema(max_length: int = 64) -> dict[str, object]:
    """What `text_parameter` takes."""
    return {"type": "string", "minLength": 1, "maxLength": max_length, "pattern": "^[^\\x00]+$"}


def _half_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
