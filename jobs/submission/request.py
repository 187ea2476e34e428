"""A submit as values: the body of a request, the request that is made of it, and what became of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

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
from foundation.json_text import canonical_json, canonical_pieces, is_short
from gpus.leasing.values import StartsIn
from gpus.models.model_config import MAX_SECONDS
from jobs.domain.errors import Refused
from jobs.domain.states import JobState, is_final
from jobs.models import Job

HIGHEST, DEFAULT_PRIORITY, LOWEST = 1, 5, 9
PRIORITY_OF_TRUE = 2
QUEUE, REJECT = "queue", "reject"
MAX_TAGS, MAX_TAG_LENGTH = 20, 64
MAX_METADATA_BYTES = 16 * 1024


def read_priority(value: Any) -> Any:
    """1..9, 1 first; ``true`` (the founding API's flag) is 2, ``false`` and nothing are 5."""
    if value is None or value is False:
        return DEFAULT_PRIORITY
    return PRIORITY_OF_TRUE if value is True else whole(value)


def _short_enough(metadata: dict[str, Any]) -> dict[str, Any]:
    short = is_short(metadata, MAX_METADATA_BYTES)  # each value and character is a byte at least
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
_Tag = Annotated[str, Field(min_length=1, max_length=MAX_TAG_LENGTH)]
IdempotencyKey = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")]


class Submit(Body):
    """A job to be made. A field that is null is one that is left out."""

    model: Annotated[Name, about("A registered model.")]
    payload: Annotated[JsonObject, about("What the GPU server gets, unchanged.")]
    callback_url: Annotated[
        Annotated[str, Field(max_length=2000)] | None,
        about("Is sent a signed POST (Standard Webhooks) when the job is over."),
    ] = None
    priority: Annotated[Priority, about("1 first; true is 2.")] = DEFAULT_PRIORITY
    deadline_seconds: Annotated[
        _Seconds | None,
        about("The job fails if it is not over so long after it was accepted, or after `run_at`."),
    ] = None
    start_deadline_seconds: Annotated[
        _Seconds | None, about("The job fails if it did not start by then; not after the deadline.")
    ] = None
    max_run_seconds: Annotated[
        _Seconds | None,
        about(
            "Longest run of one attempt; at most, and by default, the model's; at least the model's "
            "`min_run_seconds`."
        ),
    ] = None
    run_at: Annotated[
        Time | None,
        about(
            "Not in line before this time; the deadlines count from it. A time with a zone, at most 366 days "
            "ahead; one that is less than a minute past means now."
        ),
    ] = None
    if_busy: Annotated[
        Annotated[str, Choice(QUEUE, REJECT)] | None,
        about(
            "reject: where no slot is free now, the answer is 503 `busy` or `no_capacity` and nothing is "
            "stored."
        ),
    ] = QUEUE
    max_retries: Annotated[
        Annotated[int, Whole(0, 100_000)] | None, about("At most the model's, which is the default.")
    ] = None
    tags: Annotated[list[_Tag], Items(most=MAX_TAGS)] | None = None
    metadata: Annotated[
        Annotated[JsonObject, AfterValidator(_short_enough)] | None,
        about("Yours; comes back with the job. Up to 16 KB."),
    ] = None


class BatchItem(Submit):
    """One job of a batch."""

    idempotency_key: Annotated[
        IdempotencyKey | None, about("The same key and body mean the same job; another body is refused.")
    ] = None


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """One job to be made. fingerprint: equal bodies have equal ones; used with `idempotency_key` only."""

    body: Submit
    idempotency_key: str | None = None
    fingerprint: str = ""

    @property
    def reject_if_busy(self) -> bool:
        """Whether the job is refused unless a slot is free for it now."""
        return self.body.if_busy == REJECT

    def later_start(self, now: datetime) -> datetime | None:
        """When the job comes into the line; None: now."""
        run_at = self.body.run_at
        return run_at if run_at is not None and run_at > now else None


def read_request(value: Any, *, idempotency_key: str | None = None) -> SubmitRequest:
    """The body of a submit. idempotency_key: the header's. Raises Problem 422."""
    body = read_body(Submit, value)
    if idempotency_key is None:
        return SubmitRequest(body)
    return SubmitRequest(body, idempotency_key, fingerprint(value))


def read_item(value: Any) -> SubmitRequest:
    """One job of a batch, which may have a key of its own. Raises Problem 422."""
    body = read_body(BatchItem, value)
    if body.idempotency_key is None:
        return SubmitRequest(body)
    own: Mapping[str, Any] = {name: one for name, one in value.items() if name != "idempotency_key"}
    return SubmitRequest(body, body.idempotency_key, fingerprint(own))


def fingerprint(body: Any) -> str:
    """SHA-256 of the canonical text. A batch of 15 MB would hold the interpreter for 90 ms if it were written
    as one."""
    digest = hashlib.sha256()
    for piece in canonical_pieces(body):
        digest.update(piece.encode())
    return digest.hexdigest()


# -- what became of it ----------------------------------------------------------------


class Outcome(StrEnum):
    LEASED = "leased"
    """A slot was free and nobody ahead (a forecast: the lease is the worker's), or it runs already."""
    QUEUED = "queued"
    SCHEDULED = "scheduled"
    """Its time has not come: it is not in the line yet."""
    FINISHED = "finished"
    """Only of a replayed request: the job is over."""


class WaitReason(StrEnum):
    """Why a submitted job does not start at once."""

    BUSY = "busy"
    """Its slots are taken, or others go first."""
    NO_CAPACITY = "no_capacity"
    """No healthy server runs its model, or circuits keep it from all of them."""
    LATER_START = "later_start"


@dataclass(frozen=True, slots=True)
class Submitted:
    """position: estimated place in line, from 1; None if unknown. replayed: an earlier request made it.
    wait_reason: None where it does not wait, or nobody knows why. starts: None where it starts now, or nobody
    can know when."""

    job: Job
    outcome: Outcome
    position: int | None
    replayed: bool
    wait_reason: WaitReason | None = None
    starts: StartsIn | None = None


Item = Submitted | Refused


@dataclass(frozen=True, slots=True)
class SubmittedBatch:
    """One item per request, in order. replayed: the whole batch had been accepted before."""

    items: tuple[Item, ...]
    replayed: bool


def outcome_of(job: Job) -> Outcome:
    """Of a job as it stands."""
    return outcome_in(JobState(job.state))


def outcome_in(state: JobState) -> Outcome:
    """Of a job in this state."""
    if is_final(state):
        return Outcome.FINISHED
    if state is JobState.SCHEDULED:
        return Outcome.SCHEDULED
    return Outcome.LEASED if state is JobState.RUNNING else Outcome.QUEUED
