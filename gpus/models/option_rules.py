"""Rules for the values of a model's options: validators of `ModelConfig`'s fields.

Where a value changes they are checked (`gpus.registry.model_fields`), in the API and in the admin form. The
API publishes those that JSON Schema can say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import BaseValidator, RegexValidator
from django.utils.deconstruct import deconstructible

from foundation.foreign_schema import SchemaRefused, compiled
from gpus.runners.registry import find_runner, no_such_runner

MAX_SECONDS = 31_536_000
"""A year; longer is a mistake in the unit."""


class RuleBroken(ValidationError):
    """answered: the code, stable, as the API answers it. text: for people. pointer: into the value, a JSON
    Pointer."""

    def __init__(self, code: str, message: str, *, pointer: str = "") -> None:
        super().__init__(message, code=code)
        self.answered, self.text, self.pointer = code, message, pointer


@deconstructible
class MoreThan(BaseValidator):
    """The value is greater than the limit."""

    message = "More than %(limit_value)s."
    code = "more_than"

    def compare(self, a: Any, b: Any) -> bool:
        return bool(a <= b)


@deconstructible
class Matches(RegexValidator):
    """The whole text matches: Python's `$` would let a line end follow."""

    def __call__(self, value: Any) -> None:
        if not re.fullmatch(self.regex, str(value)):
            raise ValidationError(self.message, code=self.code)


def installed_runner(name: str) -> None:
    """Raises RuleBroken with the names of the installed runners."""
    if find_runner(name) is None:
        raise RuleBroken("unknown_model_type", no_such_runner(name))


def url_template(template: str) -> None:
    """Raises RuleBroken."""
    if not template.startswith(("/", "http://", "https://")):
        raise RuleBroken("invalid_template", "A template begins with / or with http(s)://.")


def names_the_run(template: str) -> None:
    """Raises RuleBroken."""
    if "{id}" not in template:
        raise RuleBroken(
            "invalid_template", "poll_endpoint_template names the run as {id}, as in /status/{id}."
        )


def own_path(path: str) -> None:
    """Raises RuleBroken."""
    is_path = path.startswith("/") and not path.startswith("//")
    if not is_path or any(character.isspace() or not character.isprintable() for character in path):
        raise RuleBroken(
            "invalid_health_path", "health_path is a path on the server's own address, as in /healthz."
        )


def seconds_or_for_ever(seconds: float) -> None:
    """Raises RuleBroken."""
    if seconds < 0 and seconds != -1:
        raise RuleBroken("invalid_keep_alive", "keep_alive_seconds is 0 or more, or -1 for ever.")


def usable_schema(schema: Any) -> None:
    """Raises RuleBroken."""
    try:
        compiled(schema)
    except SchemaRefused as refused:
        raise RuleBroken("invalid_schema", str(refused), pointer=_pointer(refused.path)) from None


def _pointer(path: Iterable[object]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
