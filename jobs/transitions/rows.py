"""The row of a job for the rest of a transaction, and how it is moved: the state and its event together."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from gpus.models import prepared
from gpus.models.prepared import value
from jobs.callbacks.outbox import callback_for
from jobs.fingerprints import fingerprint_of
from jobs.models import Event, Job
from jobs.states import JobState, is_final, move_between

_locked = prepared.Read(
    lambda: Job.objects.select_for_update().defer("payload", "result").filter(id=value(Job, "id"))
)


def lock_job(job_id: str) -> Job | None:
    """The row for the rest of the transaction (SQLite's transactions are exclusive by themselves)."""
    job: Job | None = _locked.first(id=job_id)
    return job


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
    prepared.insert(Event(job_id=job.id, seq=job.event_seq, type=kind, at=at, data=data))


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
