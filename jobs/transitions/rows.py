"""How rows are moved: a job's state and its event together, an attempt's state, and the callback of an
end."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from foundation.database.row_codec import new_row
from jobs.callbacks.outbox import callback_for
from jobs.domain.failure_fingerprints import fingerprint_of
from jobs.domain.states import AttemptState, JobState, check_attempt_move, is_final, move_between
from jobs.models import Attempt, Event, Job
from jobs.transitions.unit_of_work import change, insert


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


def move_attempt(attempt: Attempt, target: AttemptState, *fields: str) -> None:
    """Write the new state with these fields, which the caller has set. Raises IllegalMove."""
    check_attempt_move(AttemptState(attempt.state), target)
    attempt.state = target.value
    change(attempt, "state", *fields)


def log_event(job: Job, kind: str, at: datetime, data: dict[str, Any], *fields: str) -> None:
    job.event_seq += 1
    change(job, *fields, "event_seq")
    insert(new_row(Event, job_id=job.id, seq=job.event_seq, type=kind, at=at, data=data))


def call_back(job: Job, at: datetime) -> str | None:
    if not is_final(JobState(job.state)):
        return None
    callback = callback_for(job, now=at)
    if callback is None:
        return None
    insert(callback)
    return callback.id


def _error(job: Job) -> dict[str, Any]:
    return {"error": {"code": job.error_code, "message": job.error_message}} if job.error_code else {}
