"""A model's own schema for its payloads (`foundation.foreign_schema`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from foundation.foreign_schema import (
    CHEAP_STEPS,
    Mismatch,
    NoneFree,
    Patience,
    Schema,
    SchemaRefused,
    TooLong,
    TooMuchMemory,
    compiled,
    processes,
)
from jobs.domain.errors import ModelSchemaUnusable, PayloadCheckBusy, PayloadCheckTooLong, PayloadInvalid

ALONE_STEPS = CHEAP_STEPS // 10
"""A check that may take more is not made in a thread that works for many clients."""
_POINTER = "/payload"


@dataclass(slots=True)
class Checks:
    """Those of one request: what they may cost together."""

    steps_left: float = CHEAP_STEPS
    patience: Patience = field(default_factory=Patience)


def check_payload(schema: Schema | None, payload: Any, text: bytes, checks: Checks) -> None:
    """text: the payload as JSON. Raises PayloadInvalid with a pointer to the first place that does not match,
    PayloadCheckTooLong, PayloadCheckBusy, ModelSchemaUnusable."""
    if schema is None:
        return
    found = _mismatch(schema, payload, text, checks)
    if found is not None:
        path = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in found.path)
        raise PayloadInvalid(found.text, pointer=f"{_POINTER}{path}")


def comes_alone(schema: Schema | None, text: bytes) -> bool:
    """Whether a check of a payload that is not longer than this text may take long."""
    if schema is None:
        return False
    try:
        return compiled(schema).steps(text) > ALONE_STEPS
    except SchemaRefused:
        return False


def _mismatch(schema: Schema, payload: Any, text: bytes, checks: Checks) -> Mismatch | None:
    try:
        foreign = compiled(schema)
    except SchemaRefused as refused:
        raise ModelSchemaUnusable(
            f"The model's schema can't be used; tell its owner. {refused}", pointer="/model"
        ) from None
    steps = foreign.steps(text)
    if steps <= checks.steps_left:
        checks.steps_left -= steps
        return foreign.mismatch(payload)
    try:
        return processes.mismatch(foreign, payload, checks.patience)
    except TooMuchMemory:
        raise PayloadCheckTooLong(
            "The check against the model's schema needed more than the "
            f"{settings.DISPATCHER.schema_check_bytes} bytes of memory that it may have.",
            pointer=_POINTER,
        ) from None
    except TooLong:
        raise PayloadCheckTooLong(
            "The check against the model's schema took more than the "
            f"{settings.DISPATCHER.schema_check_seconds:g} s of a request.",
            pointer=_POINTER,
        ) from None
    except NoneFree:
        raise PayloadCheckBusy(
            f"{settings.DISPATCHER.schema_checks} long checks against schemas run, the most at once.",
            pointer=_POINTER,
        ) from None
