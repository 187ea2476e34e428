"""The fields of a model's configuration as operators write them: names, defaults, rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from foundation.canonical_json import canonical_json
from foundation.foreign_schema import SchemaRefused, compiled
from gpus.models import ModelConfig, Pool
from gpus.runners.base import OptionRefused
from gpus.runners.registry import find_runner, no_such_runner

POOL_FIELDS = {"queue_algorithm": "algorithm", "affinity_patience_seconds": "affinity_patience_seconds"}
"""Fields that belong to the model's pool: written through to it, for all its models."""
MODEL_FIELDS = (
    "model_type",
    "poll_endpoint_template",
    "id_field",
    "poll_interval",
    "max_poll_time",
    "max_retries",
    "max_run_seconds",
    "min_run_seconds",
    "at_most_once",
    "payload_schema",
    "cancel_endpoint_template",
    "max_response_bytes",
    "max_queued",
    "max_queued_seconds",
    "remote_model",
    "keep_alive_seconds",
    "health_path",
)
FIELDS = (*MODEL_FIELDS, *POOL_FIELDS)


class RegistryRefused(Exception):
    """The registry can't take this. code: stable; status: HTTP; pointer: into the request's body."""

    def __init__(self, code: str, message: str, *, pointer: str, status: int = 422) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.pointer = pointer


def defaults() -> dict[str, Any]:
    """Every field's value for a model that nobody configured."""
    return read_fields(ModelConfig(), Pool())


def read_fields(config: ModelConfig, pool: Pool) -> dict[str, Any]:
    """Every field's value, by the name under which it is written."""
    values = {name: getattr(config, name) for name in MODEL_FIELDS}
    return values | {name: getattr(pool, column) for name, column in POOL_FIELDS.items()}


def write_fields(config: ModelConfig, pool: Pool, values: Mapping[str, Any]) -> None:
    """Sets and checks them; saves nothing. Raises RegistryRefused."""
    stored = Stored.of(config)
    for name, value in values.items():
        if name in POOL_FIELDS:
            setattr(pool, POOL_FIELDS[name], value)
        else:
            setattr(config, name, value)
    check_fields(config, stored)


@dataclass(frozen=True, slots=True)
class Stored:
    """A model's fields before a change that are no reason to refuse it: a payload_schema that only an older
    version accepted, a model_type whose runner is not installed any more."""

    model_type: str = ""
    payload_schema: Any = None

    @classmethod
    def of(cls, config: ModelConfig) -> Stored:
        """A model that is not saved has none."""
        if config._state.adding:
            return cls()
        return cls(config.model_type, config.payload_schema)


def check_fields(config: ModelConfig, stored: Stored) -> None:
    """Raises RegistryRefused."""
    runner = find_runner(config.model_type)
    if runner is None and config.model_type != stored.model_type:
        raise RegistryRefused("unknown_model_type", no_such_runner(config.model_type), pointer="/model_type")
    for name in ("poll_endpoint_template", "cancel_endpoint_template"):
        template = getattr(config, name)
        if template is not None and not template.startswith(("/", "http://", "https://")):
            raise RegistryRefused(
                "invalid_template", f"{name} begins with / or with http(s)://.", pointer=f"/{name}"
            )
    template = config.poll_endpoint_template
    if template is not None and "{id}" not in template:
        raise RegistryRefused(
            "invalid_template",
            "poll_endpoint_template names the run as {id}, as in /status/{id}.",
            pointer="/poll_endpoint_template",
        )
    if runner is not None:
        try:
            runner.check_options(config.spec)
        except OptionRefused as refused:
            raise RegistryRefused(refused.code, str(refused), pointer=f"/{refused.option}") from None
    _check_health_path(config)
    seconds = config.keep_alive_seconds
    if seconds is not None and seconds < 0 and seconds != -1:
        raise RegistryRefused(
            "invalid_keep_alive",
            "keep_alive_seconds is 0 or more, or -1 for ever.",
            pointer="/keep_alive_seconds",
        )
    if config.payload_schema is not None and not _is_same(config.payload_schema, stored.payload_schema):
        _check_schema(config.payload_schema)


def _check_health_path(config: ModelConfig) -> None:
    path = config.health_path
    if path is None:
        return
    is_path = path.startswith("/") and not path.startswith("//")
    if not is_path or any(character.isspace() or not character.isprintable() for character in path):
        raise RegistryRefused(
            "invalid_health_path",
            "health_path is a path on the server's own address, as in /healthz.",
            pointer="/health_path",
        )


def _is_same(one: Any, other: Any) -> bool:
    """As JSON: to Python, true and 1 are equal."""
    return canonical_json(one) == canonical_json(other)


def _check_schema(schema: Any) -> None:
    try:
        compiled(schema)
    except SchemaRefused as refused:
        raise RegistryRefused(
            "invalid_schema", str(refused), pointer=f"/payload_schema{_pointer(refused.path)}"
        ) from None


def _pointer(path: Iterable[object]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
