"""Request bodies about servers, models and operator controls.

The options of a model are declared as fields of `ModelConfig`, from which the body types are generated.
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

from foundation.expressions import DEFAULT_LIMITS
from foundation.http_api.json_body import (
    OMITTED,
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
from gpus.models.model_config import MAX_PLACES, MoreThan, installed_runner, usable_places
from gpus.protocol import DesiredState
from gpus.registry.model_fields import all_options, defaults, help_of
from gpus.registry.registry import MAX_SLOTS
from gpus.runners.registry import runner_names


class _JsonSchema:
    """An object or a boolean; the option's validator checks the rest."""

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
"""Types by class of the model field. JSON fields of options are JSON Schemas, but for `_PATHS`."""
_PATHS = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=DEFAULT_LIMITS.characters)]],
    Field(max_length=MAX_PLACES),
]
_LIMITS: Mapping[type[BaseValidator], str] = {
    MinValueValidator: "ge",
    MaxValueValidator: "le",
    MoreThan: "gt",
    MinLengthValidator: "min_length",
    MaxLengthValidator: "max_length",
}


def type_of(field: models.Field[Any, Any]) -> Any:
    """The type of an option with the rules that JSON Schema can express; the other rules are checked later.

    Raises KeyError for a field class without an entry in `_TYPES`.
    """
    found = _PATHS if usable_places in field._validators else _TYPES[type(field)]  # type: ignore[attr-defined]
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
    """The annotated types of all options by name."""
    return {name: Annotated[type_of(field), about(help_of(name))] for name, field in all_options().items()}


class _Config(Body):
    """Body of PUT and PATCH. `model`, `pool` and `fleet` may be repeated as returned by GET."""

    model: Name = OMITTED
    pool: Name = OMITTED
    fleet: Name = OMITTED


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
"""Explicit, because pydantic generates `patternProperties` from the keys' type, which allow other names."""


class _Register(Body):
    """A server and a model to place on it."""

    model: Name
    server: Name
    endpoint: Annotated[str, Field(min_length=1, max_length=500), about("http(s) URL to POST to.")]
    slots: Annotated[int, Whole(1, MAX_SLOTS)]
    pool: Annotated[Name, about("Default: a pool of the model's own, named after it.")] = OMITTED
    fleet: Annotated[Name, about("Default: main.")] = OMITTED
    host: Annotated[
        Annotated[str, Field(max_length=200)] | None, about("Pinned: only the worker on this host drives it.")
    ] = None
    machine: Annotated[Name, about("Group of servers that are switched together.")] = OMITTED
    headers: Annotated[
        Annotated[dict[_HeaderName, _HeaderValue], Members(50), _HEADERS] | None,
        about("Secret request headers; stored encrypted, never shown."),
    ] = None
    ca_pem: Annotated[str, Field(max_length=100_000)] | None = None


Register: type[_Register] = create_model(
    "Register",
    __base__=_Register,
    __doc__=_Register.__doc__,
    **cast("Any", {name: (type_, OMITTED) for name, type_ in options().items()}),
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
    """Changes of a server; at least one field."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    desired: Annotated[
        Desired, about("draining: running jobs finish. off: running jobs are stopped and requeued.")
    ] = OMITTED
    slots: Annotated[int, Whole(0, MAX_SLOTS)] = OMITTED

    _not_empty = model_validator(mode="after")(not_empty)


class MachineChange(Body):
    """The desired state of all servers of a machine."""

    desired: Desired


class PauseBody(Body):
    """The reason of a pause."""

    reason: Annotated[str, Field(max_length=500)] = ""


class FreeBody(Body):
    """The operator's evidence that the slot is free."""

    reason: Annotated[str, Field(max_length=500)] = ""


class RevertBody(Body):
    """The version to revert to."""

    number: Annotated[int, Whole(1, 2**31 - 1)]
