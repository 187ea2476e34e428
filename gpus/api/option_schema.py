"""A field of a Django model as JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from django.core.validators import (
    BaseValidator,
    MaxLengthValidator,
    MaxValueValidator,
    MinLengthValidator,
    MinValueValidator,
    RegexValidator,
)
from django.db import models

from gpus.models.option_rules import MoreThan, installed_runner
from gpus.runners.registry import runner_names

Schema = dict[str, Any]

_TYPES: Mapping[type[models.Field[Any, Any]], Schema] = {
    models.BooleanField: {"type": "boolean"},
    models.CharField: {"type": "string", "minLength": 1},
    models.FloatField: {"type": "number"},
    models.PositiveIntegerField: {"type": "integer", "minimum": 0},
    models.JSONField: {"type": ["object", "boolean"]},
}
"""By the field's class. A JSON field of an option holds a schema."""
_LIMITS: Mapping[type[BaseValidator], str] = {
    MinValueValidator: "minimum",
    MaxValueValidator: "maximum",
    MoreThan: "exclusiveMinimum",
    MinLengthValidator: "minLength",
    MaxLengthValidator: "maxLength",
}


def schema_of(field: Any) -> Schema:
    """Type and rules, but those that JSON Schema can't say, which are checked after it. Raises KeyError for a
    class of fields that no option has yet."""
    schema = dict(_TYPES[type(field)])
    for rule in field._validators:  # the field's own, without the database's range
        if type(rule) in _LIMITS:
            schema[_LIMITS[type(rule)]] = rule.limit_value
        elif isinstance(rule, RegexValidator):
            schema["pattern"] = re.compile(rule.regex).pattern
    if field.max_length is not None:
        schema["maxLength"] = field.max_length
    if installed_runner in field._validators:
        schema = {"enum": runner_names()}
    elif field.choices:
        schema = {"enum": [value for value, _ in field.choices]}
    if field.null:
        types = schema["type"]
        schema["type"] = [*(types if isinstance(types, list) else [types]), "null"]
    return schema
