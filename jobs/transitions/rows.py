"""The row of a job for the rest of a transaction, and how it is moved: the state and its event together.

A transaction that writes many attempts reads their rows together, and adds their events together: three
statements for all in place of five for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpus.models import prepared
from gpus.models.prepared import value
from jobs.callbacks.outbox import callback_for
from jobs.fingerprints import fingerprint_of
from jobs.models import Attempt, Event, Job
from jobs.states import JobState, is_final, move_between

_locked = prepared.Read(
    lambda: Job.objects.select_for_update().defer("payload", "result").filter(id=value(Job, "id"))
)
_locked_among = prepared.ReadAmong(
    Job,
    "id",
    lambda ids: Job.objects.select_for_update().defer("payload", "result").filter(id__in=ids).order_by("id"),
)
_of_id = prepared.Read(lambda: Attempt.objects.filter(id=value(Attempt, "id")))
_attempts_among = prepared.ReadAmong(
    Attempt, "id", lambda ids: Attempt.objects.filter(id__in=ids).order_by("id")
)


@dataclass(frozen=True, slots=True)
class Touched:
    """What a write is about: its job, and the attempt whose row it reads."""

    job_id: str
    attempt_id: str


@dataclass(slots=True)
class _Together:
    """Rows of this transaction as they are now, None for those that are not there; and the events to add."""

    jobs: dict[str, Job | None] = field(default_factory=dict)
    attempts: dict[str, Attempt | None] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)


_together: ContextVar[_Together | None] = ContextVar("rows_of_this_transaction", default=None)


@contextmanager
def together(touched: Sequence[Touched]) -> Iterator[None]:
    """Inside a transaction, which ends with this block or is rolled back: locks the jobs of all these writes,
    in order of their ids (so that two workers never wait for each other in a circle), and reads their
    attempts. Events are added at its end."""
    if len(touched) < 2:
        yield
        return
    job_ids = sorted({one.job_id for one in touched})
    attempt_ids = sorted({one.attempt_id for one in touched})
    rows = _Together(dict.fromkeys(job_ids), dict.fromkeys(attempt_ids))
    rows.jobs.update((job.id, job) for job in _locked_among(job_ids))
    rows.attempts.update((attempt.id, attempt) for attempt in _attempts_among(attempt_ids))
    token = _together.set(rows)
    try:
        yield
    finally:
        _together.reset(token)
    prepared.insert_all(rows.events)


def lock_job(job_id: str) -> Job | None:
    """The row for the rest of the transaction (SQLite's transactions are exclusive by themselves)."""
    rows = _together.get()
    if rows is not None and job_id in rows.jobs:
        return rows.jobs[job_id]
    job: Job | None = _locked.first(id=job_id)
    return job


def read_attempt(attempt_id: str) -> Attempt | None:
    """Its job must be locked."""
    rows = _together.get()
    if rows is not None and attempt_id in rows.attempts:
        return rows.attempts[attempt_id]
    attempt: Attempt | None = _of_id.first(id=attempt_id)
    return attempt


def insert_attempt(attempt: Attempt) -> bool:
    """False: the unique index on live slots, which stands behind the lease, knows another one."""
    if not prepared.insert(attempt, ignore_conflicts=True):
        return False
    rows = _together.get()
    if rows is not None:
        rows.attempts[attempt.id] = attempt
    return True


def change_attempt(attempt_id: str, fields: dict[str, Any], **only_if: Any) -> bool:
    """A compare-and-set; whether it was so."""
    rows = _together.get()
    if rows is not None:
        rows.attempts.pop(attempt_id, None)  # read again by whoever asks
    return prepared.change(Attempt, attempt_id, fields, **only_if)


def move_job(job: Job, target: JobState, at: datetime, data: dict[str, Any], *fields: str) -> None:
    move = move_between(JobState(job.state), target)
    job.state = target.value
    if is_final(target):
        job.finished_at = at
        fields = (*fields, "finished_at")
    if target is JobState.FAILED:
        job.error_fingerprint = fingerprint_of(job.error_code, job.error_message)
        fields = (*fields, "error_fingerprint")
    log_event(job, move.event, at, {**data, "status": target.value, **_error(job)}, "state", *fields)


def log_event(job: Job, kind: str, at: datetime, data: dict[str, Any], *fields: str) -> None:
    job.event_seq += 1
    prepared.update(job, (*fields, "event_seq"))
    event = Event(job_id=job.id, seq=job.event_seq, type=kind, at=at, data=data)
    rows = _together.get()
    if rows is None:
        prepared.insert(event)
    else:
        rows.events.append(event)


def call_back(job: Job, at: datetime) -> str | None:
    if not is_final(JobState(job.state)):
        return None
    callback = callback_for(job, now=at)
    if callback is None:
        return None
    prepared.insert(callback)
    return callback.id


def _error(job: Job) -> dict[str, Any]:
    return {"error": {"code": job.error_code, "message": job.error_message}} if job.error_code else {}
