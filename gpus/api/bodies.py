"""The bodies of requests about machines, models and controls.

The options of a model are declared as the fields of `ModelConfig`, from which their part of a body is made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, cast

from django.core.validators import (
    BaseValidator,
    MaxLengthValidator,
    MaxValueValidator,
    MinLengthValidator,
    MinValueValidator,
    RegexValidator,
)
from django.db import models
from pydantic import ConfigDict, Field, WithJsonSchema, create_model, model_validator
from pydantic_core import PydanticCustomError, core_schema

from foundation.http_api.json_body import (
    LEFT_OUT,
    Body,
    Choice,
    Members,
    Name,
    Whole,
    about,
    choices,
    not_empty,
)
from foundation.http_api.openapi import json_schema
from gpus.models.model_config import MoreThan, installed_runner
from gpus.protocol import DesiredState
from gpus.registry.model_fields import all_options, defaults, help_of
from gpus.registry.registry import MAX_SLOTS
from gpus.runners.registry import runner_names


class _JsonSchema:
    """An object or a boolean; what else is wrong with it the option's own rule says."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        def check(value: Any) -> Any:
            if isinstance(value, dict | bool):
                return value
            raise PydanticCustomError("wrong_type", "Must be of type object or boolean.")

        return core_schema.no_info_plain_validator_function(check)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": ["object", "boolean"]}


_TYPES: Mapping[type[models.Field[Any, Any]], Any] = {
    models.BooleanField: bool,
    models.CharField: Annotated[str, Field(min_length=1)],
    models.FloatField: float,
    models.PositiveIntegerField: int,
    models.JSONField: Annotated[Any, _JsonSchema()],
}
"""By the field's class. A JSON field of an option holds a schema."""
_LIMITS: Mapping[type[BaseValidator], str] = {
    MinValueValidator: "ge",
    MaxValueValidator: "le",
    MoreThan: "gt",
    MinLengthValidator: "min_length",
    MaxLengthValidator: "max_length",
}


def type_of(field: models.Field[Any, Any]) -> Any:
    """The type of an option with its rules, but those that JSON Schema can't say, which are checked after it.
    Raises KeyError for a class of fields that no option has yet."""
    found = _TYPES[type(field)]
    limits: dict[str, Any] = {}
    for rule in field._validators:  # type: ignore[attr-defined]  # without the database's range
        if type(rule) in _LIMITS:
            limits[_LIMITS[type(rule)]] = rule.limit_value
        elif isinstance(rule, RegexValidator):
            limits["pattern"] = re.compile(rule.regex).pattern
    if field.max_length is not None:
        limits["max_length"] = field.max_length
    if found is int:
        found = Annotated[int, Whole(limits.get("ge", 0), limits.get("le"))]
    elif limits:
        found = Annotated[found, Field(**limits)]
    if installed_runner in field._validators:  # type: ignore[attr-defined]
        found = Annotated[str, choices(runner_names())]
    elif field.choices:
        found = Annotated[str, Choice(*(value for value, _ in field.choices))]  # type: ignore[union-attr, misc]
    return found | None if field.null else found


def schema_of(field: models.Field[Any, Any]) -> dict[str, Any]:
    """A field's type and rules as JSON Schema."""
    return json_schema(type_of(field))


def options() -> dict[str, Any]:
    """Each option's type, by the name under which it is written."""
    return {name: Annotated[type_of(field), about(help_of(name))] for name, field in all_options().items()}


class _Config(Body):
    """PUT and PATCH. `model`, `pool` and `fleet` may be repeated as GET showed them."""

    model: Name = LEFT_OUT
    pool: Name = LEFT_OUT
    fleet: Name = LEFT_OUT


_DEFAULTS = defaults()
ModelConfigBody: type[_Config] = create_model(
    "ModelConfigBody",
    __base__=_Config,
    __doc__=_Config.__doc__,
    **cast("Any", {name: (type_, _DEFAULTS[name]) for name, type_ in options().items()}),
)


_HEADER_NAME, _HEADER_VALUE = "^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$", "^[\\t\\x20-\\x7e]*$"
_HeaderName = Annotated[str, Field(pattern=_HEADER_NAME)]
_HeaderValue = Annotated[str, Field(max_length=8000, pattern=_HEADER_VALUE)]
_HEADERS = WithJsonSchema(
    {
        "type": "object",
        "maxProperties": 50,
        "propertyNames": {"pattern": _HEADER_NAME},
        "additionalProperties": {"type": "string", "maxLength": 8000, "pattern": _HEADER_VALUE},
    }
)
"""Of the keys' type pydantic makes `patternProperties`, which let other names through."""


class _Register(Body):
    """A server, and the model that it runs."""

    model: Name
    server: Name
    endpoint: Annotated[str, Field(min_length=1, max_length=500), about("http(s) URL to POST to.")]
    slots: Annotated[int, Whole(1, MAX_SLOTS)]
    pool: Annotated[Name, about("Default: a pool of the model's own, named after it.")] = LEFT_OUT
    fleet: Annotated[Name, about("Default: main.")] = LEFT_OUT
    host: Annotated[
        Annotated[str, Field(max_length=200)] | None, about("Only the worker on this host drives it.")
    ] = None
    machine: Annotated[Name, about("What it is part of: its servers are switched in one go.")] = LEFT_OUT
    headers: Annotated[
        Annotated[dict[_HeaderName, _HeaderValue], Members(50), _HEADERS] | None,
        about("Secret request headers; stored encrypted, never shown."),
    ] = None
    ca_pem: Annotated[str, Field(max_length=100_000)] | None = None


Register: type[_Register] = create_model(
    "Register",
    __base__=_Register,
    __doc__=_Register.__doc__,
    **cast("Any", {name: (type_, LEFT_OUT) for name, type_ in options().items()}),
)


class Inspect(Body):
    """A server that may be registered."""

    url: Annotated[
        str, Field(min_length=1, max_length=500), about("Of the server, or of one of its endpoints.")
    ]
    headers: Annotated[
        Annotated[dict[_HeaderName, _HeaderValue], Members(50), _HEADERS] | None,
        about("Secret request headers that the server asks for; used for this look alone."),
    ] = None
    ca_pem: Annotated[str, Field(max_length=100_000)] | None = None


Desired = Annotated[str, choices(DesiredState)]


class ServerChange(Body):
    """At least one of them."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    desired: Annotated[
        Desired, about("draining: what runs ends. off: what runs is stopped and waits again.")
    ] = LEFT_OUT
    slots: Annotated[int, Whole(0, MAX_SLOTS)] = LEFT_OUT

    _not_empty = model_validator(mode="after")(not_empty)


class MachineChange(Body):
    """All servers of a machine."""

    desired: Desired


class PauseBody(Body):
    """Why."""

    reason: Annotated[str, Field(max_length=500)] = ""


class FreeBody(Body):
    """Why the operator knows."""

    reason: Annotated[str, Field(max_length=500)] = ""


class RevertBody(Body):
    """To which version."""

    number: Annotated[int, Whole(1, 2**31 - 1)]
