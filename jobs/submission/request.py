"""The body of a submit, its checks, and the values of its answer. The checks need neither limits nor other
jobs.

`start_deadline_seconds` and `deadline_seconds` count from the moment at which the job may start: `run_at`, or
the acceptance. So they are right even if the client's clock is wrong.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from django.conf import settings
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from artifacts.file_fields import checked_schema
from artifacts.refs import MARK
from foundation.foreign_schema import (
    CHEAP_STEPS,
    CheckTimedOut,
    Mismatch,
    NoFreeProcess,
    Schema,
    SchemaProcesses,
    SchemaRefused,
    TimeBudget,
    TooMuchMemory,
    compiled,
)
from foundation.http_api.json_body import (
    Body,
    Choice,
    Items,
    JsonObject,
    Name,
    Time,
    Whole,
    about,
    read_body,
    whole,
)
from foundation.http_client import MAX_URL_LENGTH
from foundation.json_paths import pointer
from foundation.json_text import canonical_json, canonical_pieces, is_short
from foundation.stored_schema import StoredSchema
from gpus.leasing.values import StartsIn
from gpus.models.model_config import MAX_SECONDS
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
from jobs.domain.states import JobState, is_final
from jobs.limits.submit_limits import limits_of
from jobs.models import IdempotencyKey, Job
from jobs.ports import Ports
from jobs.submission.artifact_refs import checked_refs, refs_in
from jobs.submission.input_files import NO_FILES, InputFiles, PayloadFiles, fingerprint_body, has_files

HIGHEST, DEFAULT_PRIORITY, LOWEST = 1, 5, 9
PRIORITY_OF_TRUE = 2
QUEUE, REJECT = "queue", "reject"
MAX_TAGS, MAX_TAG_LENGTH = 20, 64
MAX_METADATA_BYTES = 16 * 1024


def read_priority(value: Any) -> Any:
    """Return a priority 1..9, 1 first. ``true`` (the flag of the first API) is 2; ``false`` and ``null`` are
    5."""
    if value is None or value is False:
        return DEFAULT_PRIORITY
    return PRIORITY_OF_TRUE if value is True else whole(value)


def _short_enough(metadata: dict[str, Any]) -> dict[str, Any]:
    short = is_short(metadata, MAX_METADATA_BYTES)  # each value and character has at least a byte
    if not short or len(canonical_json(metadata).encode()) > MAX_METADATA_BYTES:
        raise PydanticCustomError("too_large", f"Must be at most {MAX_METADATA_BYTES} bytes.")
    return metadata


Priority = Annotated[
    int,
    Field(ge=HIGHEST, le=LOWEST),
    BeforeValidator(read_priority),
    WithJsonSchema({"type": ["integer", "boolean", "null"], "minimum": HIGHEST, "maximum": LOWEST}),
]
_Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Tags = Annotated[list[Annotated[str, Field(min_length=1, max_length=MAX_TAG_LENGTH)]], Items(most=MAX_TAGS)]
CallbackUrl = Annotated[str, Field(max_length=MAX_URL_LENGTH)]
KeyText = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")]


class Submit(Body):
    """The body of a submit. A field that is null counts as missing."""

    model: Annotated[Name, about("A registered model.")]
    payload: Annotated[
        JsonObject, about("What the GPU server gets; references to files are replaced by signed URLs.")
    ]
    callback_url: Annotated[
        CallbackUrl | None,
        about("URL that gets a signed POST (Standard Webhooks) when the job has ended."),
    ] = None
    priority: Annotated[Priority, about("1 (first) to 9 (last); true means 2.")] = DEFAULT_PRIORITY
    deadline_seconds: Annotated[
        _Seconds | None,
        about("Seconds from the submit, or from `run_at`, after which a job that has not ended fails."),
    ] = None
    start_deadline_seconds: Annotated[
        _Seconds | None,
        about("The same for a job that has not started; at most `deadline_seconds`."),
    ] = None
    max_run_seconds: Annotated[
        _Seconds | None,
        about(
            "Longest run of one attempt, between the model's `min_run_seconds` and `max_run_seconds`, which "
            "is the default."
        ),
    ] = None
    run_at: Annotated[
        Time | None,
        about(
            "The job is queued at this time, and its deadlines count from it. A time with a zone, at most "
            "366 days ahead. A time less than a minute ago means now."
        ),
    ] = None
    if_busy: Annotated[
        Annotated[str, Choice(QUEUE, REJECT)] | None,
        about(
            "reject: if no slot is free now, the answer is 503 `busy` or `no_capacity`, and no job is stored."
        ),
    ] = QUEUE
    max_retries: Annotated[
        Annotated[int, Whole(0, 100_000)] | None, about("At most the model's number, which is the default.")
    ] = None
    tags: Tags | None = None
    metadata: Annotated[
        Annotated[JsonObject, AfterValidator(_short_enough)] | None,
        about("Data of the client, returned with the job. Up to 16 KB."),
    ] = None


class BatchItem(Submit):
    """One job of a batch."""

    idempotency_key: Annotated[
        KeyText | None, about("The same key and body mean the same job; another body is refused.")
    ] = None


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """A job to submit. fingerprint: hash of the body, equal for equal bodies; only set with an
    `idempotency_key`. artifacts: ids of those that its payload refers to, once it is checked. rerun_of: id of
    the job that it runs again. by: actor of the audit entry; None: of a client's own request, which has
    none. files: that came with it, and become artifacts when it is checked."""

    body: Submit
    idempotency_key: str | None = None
    fingerprint: str = ""
    artifacts: tuple[str, ...] = ()
    rerun_of: str | None = None
    by: str | None = None
    files: InputFiles = NO_FILES

    @property
    def reject_if_busy(self) -> bool:
        """True if the job is to be refused unless a slot is free for it now."""
        return self.body.if_busy == REJECT

    def later_start(self, now: datetime) -> datetime | None:
        """Return when the job is queued; None: now."""
        run_at = self.body.run_at
        return run_at if run_at is not None and run_at > now else None


def read_request(
    value: Any, *, idempotency_key: str | None = None, files: InputFiles = NO_FILES
) -> SubmitRequest:
    """Read the body of a submit. idempotency_key: from the header. files: that came with it. Raises Problem
    422."""
    body = read_body(Submit, value)
    if idempotency_key is None:
        return SubmitRequest(body, files=files)
    return SubmitRequest(body, idempotency_key, fingerprint(fingerprint_body(value, files)), files=files)


def keys_of(requests: Sequence[SubmitRequest | Refused]) -> list[str]:
    """Return the idempotency keys of those requests that have one."""
    return [one.idempotency_key for one in requests if isinstance(one, SubmitRequest) and one.idempotency_key]


def read_item(value: Any) -> SubmitRequest:
    """Read one job of a batch, which may have a key of its own. Raises Problem 422."""
    body = read_body(BatchItem, value)
    if body.idempotency_key is None:
        return SubmitRequest(body)
    own: Mapping[str, Any] = {name: one for name, one in value.items() if name != "idempotency_key"}
    return SubmitRequest(body, body.idempotency_key, fingerprint(own))


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """An Idempotency-Key and the `fingerprint` of its request: with another request the key is refused."""

    key: str
    fingerprint: str


def fingerprint(body: Any) -> str:
    """Return the SHA-256 of the body's canonical JSON, written in pieces: a batch of 15 MB at once would
    block the interpreter for 90 ms."""
    digest = hashlib.sha256()
    for piece in canonical_pieces(body):
        digest.update(piece.encode())
    return digest.hexdigest()


# -- the answer -----------------------------------------------------------------------


class Outcome(StrEnum):
    """The state of a submitted job, as its answer says."""

    LEASED = "leased"
    """A slot is free and no other job is ahead (a forecast: the lease is the worker's), or the job runs
    already."""
    QUEUED = "queued"
    SCHEDULED = "scheduled"
    """Its `run_at` has not come: it is not queued yet."""
    FINISHED = "finished"
    """Only of a replayed request: the job has ended."""


class WaitReason(StrEnum):
    """Why a submitted job does not start at once."""

    BUSY = "busy"
    """The model's slots are taken, or other jobs are ahead."""
    NO_CAPACITY = "no_capacity"
    """No healthy server runs the model, or the circuits of all of them are open."""
    LATER_START = "later_start"
    """Its `run_at` has not come."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A submitted job.

    position: estimated place in its queue, from 1; None: unknown. replayed: an earlier request submitted it.
    wait_reason: None if it does not wait, or if the reason is unknown. starts: forecast of its start; None if
    it starts now, or if there is no forecast.
    """

    job: Job
    outcome: Outcome
    position: int | None
    replayed: bool
    wait_reason: WaitReason | None = None
    starts: StartsIn | None = None


Item = Submitted | Refused


@dataclass(frozen=True, slots=True)
class SubmittedBatch:
    """The answer to a batch. items: one per request, in order. replayed: the whole batch was accepted
    before."""

    items: tuple[Item, ...]
    replayed: bool


def outcome_of(job: Job) -> Outcome:
    """Return the outcome of a job by its state."""
    return outcome_of_state(JobState(job.state))


def outcome_of_state(state: JobState) -> Outcome:
    """Return the outcome of a job in this state."""
    if is_final(state):
        return Outcome.FINISHED
    if state is JobState.SCHEDULED:
        return Outcome.SCHEDULED
    return Outcome.LEASED if state is JobState.RUNNING else Outcome.QUEUED


# -- checks ----------------------------------------------------------------------------------

ALONE_STEPS = CHEAP_STEPS // 10
"""A slow check, with more steps than these, is not made in a thread that works for many clients."""
_POINTER = "/payload"
SKEW_SECONDS = 60.0
"""A `run_at` that is past by less than this means now: clocks differ, and requests take time."""
MAX_AHEAD_SECONDS = 366 * 86_400.0


@dataclass(slots=True)
class CheckBudget:
    """Limit on the total cost of one request's schema checks.

    steps_left: in this process. time_left: for checks in another process; None before the first one.
    """

    steps_left: float = CHEAP_STEPS
    time_left: TimeBudget | None = None


@dataclass(frozen=True, slots=True)
class Allowed:
    """The models that a request may submit to. of_tenant, of_key: names; None: all.

    checks: the budget of its payloads' checks against schemas.
    """

    of_tenant: frozenset[str] | None
    of_key: frozenset[str] | None
    checks: CheckBudget = field(default_factory=CheckBudget)

    def covers(self, model: str) -> bool:
        return all(names is None or model in names for names in (self.of_tenant, self.of_key))

    def check(self, model: str) -> None:
        """Raises ModelNotAllowed."""
        for owner, names in (("tenant", self.of_tenant), ("key", self.of_key)):
            if names is not None and model not in names:
                raise ModelNotAllowed(f"This {owner} may not submit to {model!r}.", pointer="/model")


def checked_unless_replay(
    request: SubmitRequest | Refused,
    known: Mapping[str, IdempotencyKey],
    may: Allowed,
    now: datetime,
    ports: Ports,
    *,
    tenant_id: int,
) -> SubmitRequest | Refused:
    """Return the request, or the refusal of its checks. A replay of an accepted request is not checked: its
    client lost the answer, and must get it even if `run_at` is past by now or the tenant may not submit to
    the model any more.

    known: by key, those that the tenant used before. tenant_id: whose artifacts its payload may refer to.
    """
    if isinstance(request, Refused):
        return request
    used = known.get(request.idempotency_key or "")
    if used is not None and used.fingerprint == request.fingerprint:
        return request
    is_conflict = used is not None  # refused when it is stored
    return _checked(request, tenant_id, may, now, ports, store_files=not is_conflict)


def _checked(
    request: SubmitRequest,
    tenant_id: int,
    may: Allowed,
    now: datetime,
    ports: Ports,
    *,
    store_files: bool = True,
) -> SubmitRequest | Refused:
    """Return the request, or the refusal of a check that needs neither limits nor other jobs. store_files:
    make its files artifacts."""
    try:
        may.check(request.body.model)
        spec = ports.registry.model_spec(request.body.model)
        if spec is None:
            raise UnknownModel.named(request.body.model)
        check_times(request, spec, now)
        _check_retries(request, spec)
        text, files = _check_content(request, spec, may, ports)
        if request.body.callback_url:
            check_callback_url(request.body.callback_url, refused_origins(ports.registry))
        if files is not None and store_files:
            payload = files.stored(tenant_id, now, ports)
            if payload is not request.body.payload:
                request = replace(request, body=request.body.model_copy(update={"payload": payload}))
                text = json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()
        artifacts = checked_refs(request.body.payload, text, tenant_id, now, ports) if MARK in text else ()
        if files is not None and artifacts:
            files.check_types(tenant_id)
    except Refused as refused:
        return refused
    return replace(request, artifacts=artifacts) if artifacts else request


def _check_retries(request: SubmitRequest, spec: ModelSpec) -> None:
    if request.body.max_retries is not None and request.body.max_retries > spec.max_retries:
        raise TooManyRetries(
            f"The model's jobs are tried again {spec.max_retries} times at most; a job can lower that.",
            pointer="/max_retries",
        )


def _check_content(
    request: SubmitRequest, spec: ModelSpec, may: Allowed, ports: Ports
) -> tuple[bytes, PayloadFiles | None]:
    """Check the size of a payload, and the payload against its model's schema. Return its JSON, and its
    files. Raises Refused."""
    limit = settings.DISPATCHER.max_payload_bytes
    text = json.dumps(request.body.payload, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) > limit:
        raise PayloadTooLarge(
            f"The payload may have up to {limit} bytes (DISPATCHER_MAX_PAYLOAD_BYTES).", pointer="/payload"
        )
    files = None
    if request.files.uploaded is not None or (spec.payload_schema and has_files(spec.payload_schema)):
        files = PayloadFiles(request.body.payload, spec.payload_schema, request.files)
    shown = request.body.payload if files is None else files.for_check()
    check_payload(spec.payload_schema, shown, text, may.checks, ports.schema_processes)
    return text, files


def certain_refusal(check: Callable[[], object]) -> Refused | None:
    """Return the refusal of a check, unless it only says that the check could not be made."""
    try:
        check()
    except Refused as refused:
        return None if refused.passes or isinstance(refused, PayloadCheckTooLong) else refused
    return None


def certain_refusals(
    request: SubmitRequest, may: Allowed, now: datetime, ports: Ports, *, has_payload: bool
) -> Iterator[Refused]:
    """Yield why jobs like this one will be refused, as their model is now. has_payload: the jobs have the
    payload of this request; False: theirs is not known yet."""
    spec = ports.registry.model_spec(request.body.model)
    if spec is None:
        return
    checks: list[Callable[[], object]] = [
        lambda: check_times(request, spec, now),
        lambda: _check_retries(request, spec),
    ]
    if has_payload:
        checks.append(lambda: _check_content(request, spec, may, ports))
        checks.append(lambda: refs_in(request.body.payload))
    yield from filter(None, map(certain_refusal, checks))


def check_request(
    request: SubmitRequest, *, tenant: int, ports: Ports, key_models: frozenset[str] | None = None
) -> None:
    """Check a request without submitting it; limits are not checked. Raises Refused."""
    may = Allowed(limits_of(tenant, ports).allowed_models, key_models)
    checked = _checked(request, tenant, may, ports.clock.now(), ports, store_files=False)
    if isinstance(checked, Refused):
        raise checked


def is_accepted(request: SubmitRequest, tenant_id: int, may: Allowed, ports: Ports) -> bool:
    """Return True if the checks do not refuse a request. Nothing is stored."""
    checked = _checked(request, tenant_id, may, ports.clock.now(), ports, store_files=False)
    return isinstance(checked, SubmitRequest)


# -- times ------------------------------------------------------------


def check_times(request: SubmitRequest, spec: ModelSpec, now: datetime) -> None:
    """Check the deadlines, `max_run_seconds` and `run_at` of a request. Raises Refused."""
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
    clock = f"The dispatcher's clock says {now.isoformat(timespec='seconds')}"
    if ahead < -SKEW_SECONDS:
        raise RunAtInPast(f"{clock}: that was {-ahead:.0f} s ago.", pointer="/run_at")
    if ahead > MAX_AHEAD_SECONDS:
        raise RunAtTooFar(f"{clock}: a job may be at most 366 days ahead.", pointer="/run_at")


def _least_run_seconds(spec: ModelSpec) -> float:
    least: float = settings.DISPATCHER.min_run_seconds
    return least if spec.min_run_seconds is None else spec.min_run_seconds


# -- a model's own schema for its payloads -----------------------------------------


def check_payload(
    schema: Schema | StoredSchema | None,
    payload: Any,
    text: bytes,
    checks: CheckBudget,
    processes: SchemaProcesses,
) -> None:
    """Check a payload against its model's schema. text: the payload as JSON.

    Raises PayloadInvalid with a pointer to the first place that does not match, PayloadCheckTooLong,
    PayloadCheckBusy, ModelSchemaUnusable.
    """
    if schema is None:
        return
    found = _mismatch(schema, payload, text, checks, processes)
    if found is not None:
        raise PayloadInvalid(found.text, pointer=f"{_POINTER}{pointer(found.path)}")


def is_slow_check(schema: Schema | StoredSchema | None, text: bytes) -> bool:
    """Return True if the check of a payload that is not longer than this text may take long."""
    if schema is None:
        return False
    try:
        return compiled(schema).steps(text) > ALONE_STEPS
    except SchemaRefused:
        return False


def _mismatch(
    schema: Schema | StoredSchema,
    payload: Any,
    text: bytes,
    checks: CheckBudget,
    processes: SchemaProcesses,
) -> Mismatch | None:
    try:
        foreign = checked_schema(schema)
    except SchemaRefused as refused:
        raise ModelSchemaUnusable(
            f"The model's schema can't be used; tell its owner. {refused}", pointer="/model"
        ) from None
    steps = foreign.steps(text)
    if steps <= checks.steps_left:
        checks.steps_left -= steps
        return foreign.mismatch(payload)
    if checks.time_left is None:
        checks.time_left = TimeBudget()
    try:
        return processes.mismatch(foreign, payload, checks.time_left)
    except TooMuchMemory:
        raise PayloadCheckTooLong(
            "The check against the model's schema needed more than the "
            f"{settings.DISPATCHER.schema_check_bytes} bytes of memory that it may have.",
            pointer=_POINTER,
        ) from None
    except CheckTimedOut:
        raise PayloadCheckTooLong(
            "The check against the model's schema took more than the "
            f"{settings.DISPATCHER.schema_check_seconds:g} s of a request.",
            pointer=_POINTER,
        ) from None
    except NoFreeProcess:
        raise PayloadCheckBusy(
            f"{settings.DISPATCHER.schema_checks} long checks against schemas run, the most at once.",
            pointer=_POINTER,
        ) from None
