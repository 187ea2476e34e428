"""Transitions of jobs that hold no slot: submitted, queued again, ended while waiting, retried by an
operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from foundation.database import statements
from foundation.database.row_codec import new_row
from jobs.domain.errors import CANCELLED, CANCELLED_BY_OPERATOR
from jobs.domain.retry import Decision, cancel_message
from jobs.domain.states import JobState
from jobs.models import DEAD_LETTER, Attempt, Event, Job, JobTag
from jobs.transitions.unit_of_work import insert_callback, lock_job, log_event, move_job

QueueDeadline = Callable[[Job, datetime], datetime | None]
WAITING = (JobState.QUEUED, JobState.RETRYING, JobState.SCHEDULED)


@dataclass(slots=True)
class Ended:
    """The outcome of an end, of an attempt or of a job without one.

    won: this call wrote it. job: its row as written, without payload. decision: the job's next step.
    callback_id: the outbox row to deliver now. quarantined: the attempt's slot is in quarantine.
    """

    won: bool
    job: Job | None = None
    decision: Decision | None = None
    callback_id: str | None = None
    quarantined: bool = False


def new_jobs(jobs: Sequence[Job], now: datetime) -> list[statements.Statement]:
    """Return the statements that insert QUEUED and SCHEDULED jobs, their tags and their first events, to be
    executed in this order. The event is named after the state."""
    for job in jobs:
        job.event_seq = 1
    tags = [new_row(JobTag, job_id=job.id, tag=tag) for job in jobs for tag in dict.fromkeys(job.tags)]
    events = [
        new_row(
            Event,
            job_id=job.id,
            seq=1,
            type=str(job.state),
            at=now,
            data={"status": job.state, "priority": job.priority, **_later(job)},
        )
        for job in jobs
    ]
    return [*statements.inserts(jobs), *statements.inserts(tags), *statements.inserts(events)]


def _later(job: Job) -> dict[str, str]:
    return {"run_at": job.run_at.isoformat()} if job.state == JobState.SCHEDULED and job.run_at else {}


def queue_scheduled(job_id: str, at: datetime) -> Job | None:
    """Move a job SCHEDULED → QUEUED, at its `run_at`. Returns None if it is not SCHEDULED."""
    job = lock_job(job_id)
    if job is None or job.state != JobState.SCHEDULED:
        return None
    move_job(job, JobState.QUEUED, at, {})
    return job


def queue_retry(job_id: str, at: datetime) -> Job | None:
    """Move a job RETRYING → QUEUED, when its pause is over. Returns None if it is not RETRYING, or its cancel
    was requested."""
    job = lock_job(job_id)
    if job is None or job.state != JobState.RETRYING or job.cancel_requested_at is not None:
        return None
    job.due_at = None
    move_job(job, JobState.QUEUED, at, {}, "due_at")
    return job


def change_place(seen: Job, priority: int, place_us: int, at: datetime) -> Job | None:
    """Give a waiting job another priority and place, if its row still is as it was read; its ticket must have
    been removed from the index before.

    seen: the row as read. place_us: microseconds since the epoch. Returns None if the row has changed.
    """
    job = lock_job(seen.id)
    if job is None or job.state not in WAITING or job.cancel_requested_at is not None:
        return None
    if (job.state, job.priority, job.place_us) != (seen.state, seen.priority, seen.place_us):
        return None
    data = {"priority": priority, "before": job.priority}
    job.priority, job.place_us = priority, place_us
    log_event(job, "moved_in_line", at, data, "priority", "place_us")
    return job


def end_waiting(job_id: str, state: JobState, at: datetime, *, code: str, message: str) -> Ended:
    """End a job that holds no slot, CANCELLED or FAILED; its ticket must have been removed from the index
    before."""
    job = lock_job(job_id)
    if job is None or job.state not in WAITING:
        return Ended(won=False, job=job)
    job.error_code, job.error_message, job.due_at = code, message, None
    move_job(job, state, at, {}, "error_code", "error_message", "due_at")
    return Ended(won=True, job=job, callback_id=insert_callback(job, at))


def finish_cancelling(job_id: str, at: datetime, *, evidence: str) -> Ended:
    """Move a job CANCELLING → CANCELLED, once its last attempt is proven over. evidence: the proof."""
    job = lock_job(job_id)
    if job is None or job.state != JobState.CANCELLING:
        return Ended(won=False, job=job)
    Attempt.objects.filter(job_id=job.id, number=job.attempts_made).update(evidence=evidence[:200])
    by_operator = job.cancelled_by_operator
    job.error_code = CANCELLED_BY_OPERATOR if by_operator else CANCELLED
    job.error_message = cancel_message(by_operator=by_operator)
    move_job(job, JobState.CANCELLED, at, {"evidence": evidence}, "error_code", "error_message")
    return Ended(won=True, job=job, callback_id=insert_callback(job, at))


def end_cancelled(job_id: str, at: datetime, *, by_operator: bool) -> Ended:
    """End a job that holds no slot as CANCELLED; its ticket must have been removed from the index before."""
    return end_waiting(
        job_id,
        JobState.CANCELLED,
        at,
        code=CANCELLED_BY_OPERATOR if by_operator else CANCELLED,
        message=cancel_message(by_operator=by_operator),
    )


def request_cancel(job_id: str, at: datetime, *, by_operator: bool = False) -> bool:
    """Note a cancel of a job that runs, or whose start is being committed (QUEUED); its worker ends it.

    by_operator: only the first request's value counts. Returns False for a job in another state.
    """
    job = lock_job(job_id)
    if job is None or job.state not in (JobState.RUNNING, JobState.QUEUED, JobState.CANCELLING):
        return False
    note_cancel(job, at, by_operator=by_operator)
    return True


def note_cancel(job: Job, at: datetime, *, by_operator: bool) -> None:
    """Note the cancel in a locked job's row, with its event; has no effect if one is noted already."""
    if job.cancel_requested_at is None:
        job.cancel_requested_at = at
        job.cancelled_by_operator = by_operator
        log_event(job, "cancel_requested", at, {}, "cancel_requested_at", "cancelled_by_operator")


def requeue_failed(job_id: str, at: datetime, *, queue_deadline: QueueDeadline | None = None) -> Job | None:
    """Move a dead letter FAILED → QUEUED, by an operator: a new round, with fresh counters and a place at the
    end.

    queue_deadline: returns the time until which the job may wait; None: no limit.
    Returns None if the job is no dead letter.
    """
    job = lock_job(job_id)
    if job is None or job.state != JobState.FAILED or job.dismissed_at is not None:
        return None
    job.round += 1
    job.tries = job.free_connects = job.deaths = job.same_failures = 0
    job.error_code = job.error_message = job.error_fingerprint = job.avoid_server = ""
    job.finished_at = job.cancel_requested_at = job.deadline_at = job.start_deadline_at = None
    job.cancelled_by_operator = False
    job.queue_deadline_at = queue_deadline(job, at) if queue_deadline else None
    job.place_us = int(at.timestamp() * 1_000_000)
    move_job(
        job,
        JobState.QUEUED,
        at,
        {"round": job.round},
        "round",
        "tries",
        "free_connects",
        "deaths",
        "same_failures",
        "error_code",
        "error_message",
        "error_fingerprint",
        "avoid_server",
        "finished_at",
        "cancel_requested_at",
        "cancelled_by_operator",
        "deadline_at",
        "start_deadline_at",
        "queue_deadline_at",
        "place_us",
    )
    return job


def dismiss(job_ids: Sequence[str], at: datetime) -> int:
    """Dismiss dead letters; the rows are counted until retention deletes them. Returns how many of these were
    dead letters still."""
    letters = Job.objects.filter(DEAD_LETTER, id__in=job_ids)
    return letters.update(dismissed_at=at)
