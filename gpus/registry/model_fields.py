"""A model's options for operators: reads, checks and writes the fields of `ModelConfig` and of its pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import models

from foundation.json_text import canonical_json
from gpus.models import ModelConfig, Pool
from gpus.models.model_config import RuleBroken
from gpus.runners.base import OptionRefused
from gpus.runners.registry import RUNNERS, find_runner

POOL_FIELDS = {"queue_algorithm": "algorithm", "affinity_patience_seconds": "affinity_patience_seconds"}
"""Options that are stored on the model's pool, by their column there; they apply to all its models."""
_NO_OPTIONS = frozenset({"name", "pool", "created_at", "updated_at"})
OPTIONS: Final[Mapping[str, models.Field[Any, Any]]] = {
    field.name: field for field in ModelConfig._meta.concrete_fields if field.name not in _NO_OPTIONS
}
"""The options of a model by name; the model field declares type, default, rules and help text."""
MODEL_FIELDS = tuple(OPTIONS)
FIELDS = (*MODEL_FIELDS, *POOL_FIELDS)


class RegistryRefused(Exception):
    """A change of the registry is refused. code: stable; status: HTTP; pointer: JSON pointer into the request
    body."""

    def __init__(self, code: str, message: str, *, pointer: str, status: int = 422) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.pointer = pointer


def defaults() -> dict[str, Any]:
    """The default values of all options."""
    return read_fields(ModelConfig(), Pool())


def read_fields(config: ModelConfig, pool: Pool) -> dict[str, Any]:
    """The values of all options, by option name."""
    values = {name: getattr(config, name) for name in MODEL_FIELDS}
    return values | {name: getattr(pool, column) for name, column in POOL_FIELDS.items()}


def help_of(name: str) -> str:
    """The help text of an option, for the API, the admin form and the reference page."""
    if name in POOL_FIELDS:
        return f"Of the model's pool, for all its models. {_pool_field(name).help_text}"
    readers = ", ".join(runner.name for runner in RUNNERS.all().values() if name in runner.options)
    return OPTIONS[name].help_text + (f" Read by {readers}." if readers else "")


def all_options() -> Mapping[str, models.Field[Any, Any]]:
    """All options by name, including those of the pool."""
    return {**OPTIONS, **{name: _pool_field(name) for name in POOL_FIELDS}}


def _pool_field(name: str) -> Any:
    return Pool._meta.get_field(POOL_FIELDS[name])


def write_fields(config: ModelConfig, pool: Pool, values: Mapping[str, Any]) -> None:
    """Set and check options without saving. Raises RegistryRefused."""
    stored = stored_options(config)
    for name, value in values.items():
        if name in POOL_FIELDS:
            setattr(pool, POOL_FIELDS[name], value)
        else:
            setattr(config, name, value)
    for refused in refusals(config, stored):
        raise refused


def stored_options(config: ModelConfig) -> Mapping[str, Any]:
    """A model's options before a change; empty for a new model."""
    return {} if config._state.adding else {name: getattr(config, name) for name in OPTIONS}


def refusals(config: ModelConfig, stored: Mapping[str, Any]) -> Iterator[RegistryRefused]:
    """Errors of the options, one by one. stored: values before the change.

    An unchanged stored value is not checked: a payload_schema that only an older version accepted, or a
    model_type whose runner is not installed any more, must not block other changes.
    """
    for name, field in OPTIONS.items():
        value = getattr(config, name)
        if value is None or (name in stored and _is_same(value, stored[name])):
            continue
        try:
            for check in field.validators:
                check(value)
        except RuleBroken as broken:
            yield RegistryRefused(broken.api_code, broken.text, pointer=f"/{name}{broken.pointer}")
        except ValidationError as error:
            yield RegistryRefused("validation_failed", " ".join(error.messages), pointer=f"/{name}")
    runner = find_runner(config.model_type)
    if runner is not None:
        try:
            runner.check_options(config.spec)
        except OptionRefused as refused:
            yield RegistryRefused(refused.code, str(refused), pointer=f"/{refused.option}")


def _is_same(one: Any, other: Any) -> bool:
    """Compare as JSON, because true equals 1 in Python."""
    return canonical_json(one) == canonical_json(other)
