"""The bodies of the registry's routes, as JSON Schema 2020-12: published and checked at the door."""

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

from foundation.names import NAME_PATTERN
from gpus.health.health import NO_HEALTH, UNHEALTHY, UNREACHABLE
from gpus.models.option_rules import (
    MAX_SECONDS,  # noqa: F401
    MoreThan,
    installed_runner,
)
from gpus.registry.model_fields import all_options, defaults, help_of
from gpus.registry.registry import MAX_SLOTS
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


TIME: Schema = {"type": "string", "format": "date-time"}
NAME: Schema = {"type": "string", "pattern": NAME_PATTERN, "maxLength": 64}


def option_properties() -> Schema:
    """Of each option, by the name under which it is written."""
    return {name: {**schema_of(field), "description": help_of(name)} for name, field in all_options().items()}


def object_of(properties: Schema) -> Schema:
    """All of them are there."""
    return {"type": "object", "required": list(properties), "properties": properties}


def model_config_body() -> Schema:
    """PUT and PATCH. `model`, `pool` and `fleet` may be repeated as GET showed them."""
    values = defaults()
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "model": NAME,
            "pool": NAME,
            "fleet": NAME,
            **{name: {**schema, "default": values[name]} for name, schema in option_properties().items()},
        },
    }


def register_body() -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["model", "server", "endpoint", "slots"],
        "properties": {
            "model": NAME,
            "server": NAME,
            "endpoint": {
                "type": "string",
                "minLength": 1,
                "maxLength": 500,
                "description": "http(s) URL to POST to.",
            },
            "slots": {"type": "integer", "minimum": 1, "maximum": MAX_SLOTS},
            "pool": {**NAME, "description": "Default: a pool of the model's own, named after it."},
            "fleet": {**NAME, "description": "Default: main."},
            "host": {
                "type": ["string", "null"],
                "maxLength": 200,
                "description": "Only the worker on this host drives it.",
            },
            "machine": {**NAME, "description": "What it is part of: its servers are switched in one go."},
            "headers": {
                "type": ["object", "null"],
                "description": "Secret request headers; stored encrypted, never shown.",
                "maxProperties": 50,
                "propertyNames": {"pattern": "^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$"},
                "additionalProperties": {
                    "type": "string",
                    "maxLength": 8000,
                    "pattern": "^[\\t\\x20-\\x7e]*$",
                },
            },
            "ca_pem": {"type": ["string", "null"], "maxLength": 100_000},
            **option_properties(),
        },
    }


def model_config() -> Schema:
    """What GET shows."""
    properties = model_config_body()["properties"]
    return {"type": "object", "required": sorted(properties), "properties": properties}


def registered() -> Schema:
    return object_of(
        {
            "server": NAME,
            "model": NAME,
            "pool": NAME,
            "fleet": NAME,
            "endpoint": {"type": "string"},
            "slots": {"type": "integer"},
            "desired": {"enum": ["on", "draining", "off"]},
            "host": {"type": ["string", "null"]},
            "machine": {"type": ["string", "null"]},
            "live": {"type": "boolean", "description": "False: Redis is away; it follows when it is back."},
            "warnings": {
                "type": "array",
                "description": "What the operator should know before the first job.",
                "items": object_of(
                    {
                        "code": {"enum": [NO_HEALTH, UNREACHABLE, UNHEALTHY]},
                        "detail": {"type": "string"},
                    }
                ),
            },
        }
    )


def problem() -> Schema:
    return {
        "type": "object",
        "required": ["type", "title", "status", "code", "detail", "retryable"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "code": {"type": "string", "description": "Stable: see docs/api_errors.md."},
            "detail": {"type": "string"},
            "retryable": {"type": "boolean"},
            "retry_after_seconds": {
                "type": "integer",
                "description": "When to try again; as the Retry-After header.",
            },
            "errors": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["pointer", "in", "code", "detail"],
                    "properties": {
                        "pointer": {"type": "string"},
                        "in": {"enum": ["body", "query", "path", "header"]},
                        "code": {"type": "string"},
                        "detail": {"type": "string"},
                    },
                },
            },
        },
    }
