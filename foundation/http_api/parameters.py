"""Query parameters and cursor pages, validated strictly: a misspelt filter must not list everything."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Collection
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import NotFound
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request

from foundation.http_api.problems import parameter_problem

FLAG_SCHEMA = {"enum": ["true", "false"]}
"""JSON Schema of a `flag_parameter`."""


def allow_only(request: Request, names: Collection[str]) -> None:
    """Raise Problem 400 if the request has a parameter that does not exist."""
    for name in request.query_params:
        if name not in names:
            known = f"The route takes {', '.join(sorted(names))}." if names else "The route takes none."
            raise parameter_problem(
                name[:100], f"There is no such parameter. {known}", code="unknown_parameter"
            )


def text_parameter(request: Request, name: str, *, max_length: int = 64) -> str | None:
    """Return the parameter, or None. Raises Problem 400."""
    value = request.query_params.get(name)
    if value is None:
        return None
    if not 0 < len(value) <= max_length or "\0" in value or _half_surrogate(value):
        raise parameter_problem(name, f"Must be 1 to {max_length} characters, none of them NUL.")
    return value


def choice_parameter(request: Request, name: str, choices: Collection[str]) -> str | None:
    """Return the parameter if it is one of `choices`, or None. Raises Problem 400."""
    value = request.query_params.get(name)
    if value is not None and value not in choices:
        raise parameter_problem(name, f"Must be one of {', '.join(choices)}.")
    return value


def flag_parameter(request: Request, name: str) -> bool | None:
    """Return the parameter if it is true or false, or None. Raises Problem 400."""
    value = choice_parameter(request, name, FLAG_SCHEMA["enum"])
    return None if value is None else value == "true"


def whole_parameter(request: Request, name: str, *, most: int, default: int) -> int:
    """Return a whole number from 1 to `most`. Raises Problem 400."""
    value = request.query_params.get(name)
    if value is None:
        return default
    if not re.match(r"[0-9]{1,9}\Z", value) or not 1 <= int(value) <= most:
        raise parameter_problem(name, f"Must be a whole number from 1 to {most}.")
    return int(value)


def text_schema(max_length: int = 64) -> dict[str, object]:
    """Return the JSON Schema of a `text_parameter`."""
    return {"type": "string", "minLength": 1, "maxLength": max_length, "pattern": "^[^\\x00]+$"}


def _half_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


_PARTS = re.compile(rb"[orp]=[0-9A-Za-z._-]+(&[orp]=[0-9A-Za-z._-]+)*\Z")

PARAMETERS = (
    OpenApiParameter("cursor", str, description="From `next` or `previous` of another page."),
    OpenApiParameter(
        "limit", {"type": "integer", "minimum": 1, "maximum": 200}, description="Rows per page."
    ),
)


class CursorPages(CursorPagination):
    """Pages by cursor: rows that are added or removed between two requests shift nothing.

    limit: 1 to 200. ordering: by one unique field. position: pattern of that field's values in a cursor."""

    position: re.Pattern[str]
    page_size = 50
    max_page_size = 200
    page_size_query_param = "limit"

    def decode_cursor(self, request: Any) -> Cursor | None:
        encoded = request.query_params.get(self.cursor_query_param)
        try:
            if encoded is not None and not _PARTS.match(b64decode(encoded, validate=True)):
                raise _bad_cursor()
            cursor = super().decode_cursor(request)
        except (NotFound, ValueError):
            raise _bad_cursor() from None
        position = None if cursor is None else cursor.position
        if position is not None and not self.position.match(str(position)):
            raise _bad_cursor()
        return cursor

    def get_page_size(self, request: Any) -> int:
        limit = request.query_params.get(self.page_size_query_param)
        if limit is None:
            return self.page_size
        if not re.match(r"[0-9]{1,4}\Z", limit) or not 1 <= int(limit) <= self.max_page_size:
            raise parameter_problem("limit", f"Must be a number from 1 to {self.max_page_size}.")
        return int(limit)


class NamePages(CursorPages):
    """Pages of rows with a unique name, in its order."""

    ordering = "name"
    position = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


def _bad_cursor() -> Exception:
    return parameter_problem("cursor", "Not a cursor of this list.", code="bad_cursor")
