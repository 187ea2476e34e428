"""Names of pools, models, servers and tenants; they become parts of queue names, Redis keys and URLs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models

if TYPE_CHECKING:
    _Text = models.CharField[str, str]
else:
    _Text = models.CharField  # generic only for the type checker

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
MEDIA_TYPE_PATTERN = r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(; ?[A-Za-z0-9-]+=[A-Za-z0-9_.+-]+)?$"
MEDIA_TYPE_CHARS = 127
"""The longest media type that is stored."""


class NameValidator(RegexValidator):
    """Requires that the whole text matches: Python's `$` would accept a trailing newline.

    Migrations contain Django's validator, so that they need not change."""

    def __call__(self, value: Any) -> None:
        if not re.fullmatch(NAME_PATTERN, str(value)):
            raise ValidationError(self.message, code=self.code, params={"value": value})

    def deconstruct(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        return "django.core.validators.RegexValidator", (NAME_PATTERN, self.message), {}


validate_name = NameValidator(
    NAME_PATTERN, "Use 1 to 64 letters, digits, dots, dashes or underscores; begin with a letter or digit."
)


class NameField(_Text):
    """Up to 64 letters, digits, ``.``, ``_`` and ``-``."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("max_length", 64)
        kwargs.setdefault("validators", [validate_name])
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
