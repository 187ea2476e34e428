"""What is wrong with a submit whatever else goes on: nobody's limits and no other job are asked for.

`start_deadline_seconds` and `deadline_seconds` count from the moment at which the job may start: `run_at`, or
the acceptance. So a client whose clock is wrong gets the deadlines it means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings

from foundation.foreign_schema import (
    CHEAP_STEPS,
    Mismatch,
    NoneFree,
    Patience,
    Schema,
    SchemaProcesses,
    SchemaRefused,
    TooLong,
    TooMuchMemory,
    compiled,
)
from gpus.protocol import ModelSpec
from jobs.callbacks.guard import check_callback_url, refused_origins
from jobs.domain.errors import (
    DeadlineBeforeStartDeadline,
    MaxRunSecondsTooLong,
    MaxRunSecondsTooShort,
    ModelNotAllowed,
    ModelSchemaUnusable,
    PayloadCheckBusy,
    PayloadCheckTooLong,
    PayloadInvalid,
    PayloadTooLarge,
    Refused,
    RunAtInPast,
    RunAtTooFar,
    TooManyRetries,
    UnknownModel,
)
from jobs.limits.tenant_limits import limits_of
from jobs.models import IdempotencyKey
from jobs.ports import Ports
from jobs.submission.request import SubmitRequest

ALONE_STEPS = CHEAP_STEPS // 10
"""A check that may take more is not made in a thread that works for many clients."""
_POINTER = "/payload"
SKEW_SECONDS = 60.0
"""A `run_at` that is past by less means now: clocks differ, and requests take time."""
MAX_AHEAD_SECONDS = 366 * 86_400.0


@dataclass(slots=True)
class Checks:
    """Those of one request: what they may cost together."""

    steps_left: float = CHEAP_STEPS
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True, slots=True)
class Allowed:
    """Names of models; None: all. checks: of payloads against schemas."""

    of_tenant: frozenset[str] | None
    of_key: frozenset[str] | None
    checks: Checks = field(default_factory=Checks)

    def check(self, model: str) -> None:
        """Raises ModelNotAllowed."""
        for who, names in (("tenant", self.of_tenant), ("key", self.of_key)):
            if names is not None and model not in names:
                raise ModelNotAllowed(f"This {who} may not submit to {model!r}.", pointer="/model")


def checked_unless_known(
    request: SubmitRequest | Refused,
    known: Mapping[str, IdempotencyKey],
    may: Allowed,
    now: datetime,
    ports: Ports,
) -> SubmitRequest | Refused:
    """What repeats an accepted request was right when it came: that its time is past by now, or that its
    tenant may no longer submit such a job, must not keep the answer from who lost it."""
    if isinstance(request, Refused):
        return request
    used = known.get(request.idempotency_key or "")
    if used is not None and used.fingerprint == request.fingerprint:
        return request
    return _checked(request, may, now, ports)


def _checked(request: SubmitRequest, may: Allowed, now: datetime, ports: Ports) -> SubmitRequest | Refused:
    """What is wrong with the request whatever else goes on."""
    try:
        may.check(request.body.model)
        spec = ports.registry.model_spec(request.body.model)
        if spec is None:
            raise UnknownModel(f"No model {request.body.model!r} is registered.", pointer="/model")
        check_times(request, spec, now)
        if request.body.max_retries is not None and request.body.max_retries > spec.max_retries:
            raise TooManyRetries(
                f"The model's jobs are tried again {spec.max_retries} times at most; a job can lower that.",
                pointer="/max_retries",
            )
        limit = settings.DISPATCHER.max_payload_bytes
        text = json.dumps(request.body.payload, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) > limit:
            raise PayloadTooLarge(f"The payload may have up to {limit} bytes.", pointer="/payload")
        check_payload(spec.payload_schema, request.body.payload, text, may.checks, ports.schema_processes)
        if request.body.callback_url:
            check_callback_url(request.body.callback_url, refused_origins(ports.registry))
    except Refused as refused:
        return refused
    return request


def check_request(
    request: SubmitRequest, *, tenant: int, ports: Ports, key_models: frozenset[str] | None = None
) -> None:
    """What a submit would refuse whatever else goes on, without submitting. Raises Refused."""
    may = Allowed(limits_of(tenant, ports).allowed_models, key_models)
    checked = _checked(request, may, ports.clock.now(), ports)
    if isinstance(checked, Refused):
        raise checked


# -- times ------------------------------------------------------------


def check_times(request: SubmitRequest, spec: ModelSpec, now: datetime) -> None:
    """Raises Refused."""
    start, end = request.body.start_deadline_seconds, request.body.deadline_seconds
    if start is not None and end is not None and end < start:
        raise DeadlineBeforeStartDeadline(
            f"The job would have to be over after {end:g} s and to start within {start:g} s.",
            pointer="/deadline_seconds",
        )
    limit = spec.run_limit_seconds
    if request.body.max_run_seconds is not None and request.body.max_run_seconds > limit:
        raise MaxRunSecondsTooLong(
            f"The model's runs may take {limit:g} s; a job can lower that, not raise it.",
            pointer="/max_run_seconds",
        )
    least = min(limit, _least_run_seconds(spec))
    if request.body.max_run_seconds is not None and request.body.max_run_seconds < least:
        raise MaxRunSecondsTooShort(
            f"A job may limit its runs of this model to {least:g} s or more.",
            pointer="/max_run_seconds",
        )
    if request.body.run_at is None:
        return
    ahead = (request.body.run_at - now).total_seconds()
    told = f"The dispatcher's clock says {now.isoformat(timespec='seconds')}"
    if ahead < -SKEW_SECONDS:
        raise RunAtInPast(f"{told}: that was {-ahead:.0f} s ago.", pointer="/run_at")
    if ahead > MAX_AHEAD_SECONDS:
        raise RunAtTooFar(f"{told}: a job may be at most 366 days ahead.", pointer="/run_at")


def _least_run_seconds(spec: ModelSpec) -> float:
    least: float = settings.DISPATCHER.min_run_seconds
    return least if spec.min_run_seconds is None else spec.min_run_seconds


# -- a model's own schema for its payloads -----------------------------------------


def check_payload(
    schema: Schema | None, payload: Any, text: bytes, checks: Checks, processes: SchemaProcesses
) -> None:
    """text: the payload as JSON. Raises PayloadInvalid with a pointer to the first place that does not match,
    PayloadCheckTooLong, PayloadCheckBusy, ModelSchemaUnusable."""
    if schema is None:
        return
    found = _mismatch(schema, payload, text, checks, processes)
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


def _mismatch(
    schema: Schema, payload: Any, text: bytes, checks: Checks, processes: SchemaProcesses
) -> Mismatch | None:
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
