"""Starts of attempts, and starts that the database forgot in a failover."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from foundation.database.row_codec import new_row
from gpus.protocol import split_slot
from jobs.domain.states import AttemptState, JobState
from jobs.models import Attempt, Job
from jobs.transitions.rows import move_attempt, move_job
from jobs.transitions.unit_of_work import insert_attempt, lock_job, read_attempt
from jobs.transitions.waiting import WAITING


class StartOutcome(StrEnum):
    STARTED = "started"
    JOB_MOVED = "job_moved"
    """The job is not QUEUED any more (cancelled, ended, run elsewhere)."""
    SLOT_TAKEN = "slot_taken"
    """The database knows a live attempt on this slot: Redis was wrong, the slot is not to be trusted."""


@dataclass(frozen=True, slots=True)
class Start:
    """A claim to be written: the job runs, under this attempt, on this slot."""

    job_id: str
    attempt_id: str
    slot: str
    model: str
    worker: str
    at: datetime


def start_attempt(start: Start) -> StartOutcome:
    """QUEUED → RUNNING with a new attempt."""
    job = lock_job(start.job_id)
    if job is None:
        return StartOutcome.JOB_MOVED
    if job.state != JobState.QUEUED:
        is_ours = job.live_attempt == start.attempt_id or _has_begun(start)
        return StartOutcome.STARTED if is_ours else StartOutcome.JOB_MOVED
    return _write(start, job, AttemptState.SENT)


def rewrite_start(start: Start) -> bool:
    """Writes a start that was committed before and is not there: a promoted standby lacked it. False: its job
    is over, or went on without it.

    The standby may lack what came before it, too: that the job's time had come, and that the runs before it,
    of its job and on its slot, were over. The row of that on the slot still stands there as live, so this one
    is written as over; the caller writes its end in the same transaction.
    """
    job = lock_job(start.job_id)
    if job is None or not is_to_begin(start, job):
        return False
    if job.state == JobState.RUNNING:
        _end_run_before(start, job)
    elif job.state != JobState.QUEUED:
        job.due_at = None
        move_job(job, JobState.QUEUED, start.at, {}, "due_at")
    if _write(start, job, AttemptState.SENT) is StartOutcome.SLOT_TAKEN:
        _write(start, job, AttemptState.LOST)
    return True


def is_to_begin(start: Start, job: Job) -> bool:
    """Whether the job's row is from before this start: it waits, or runs what was over by then."""
    before = read_attempt(job.live_attempt) if job.live_attempt else None
    return job.state in WAITING if before is None else before.started_at < start.at


def _end_run_before(start: Start, job: Job) -> None:
    """How it ended, its own worker knows; that it did is enough here."""
    before = read_attempt(job.live_attempt or "")
    assert before is not None
    before.finished_at = start.at
    move_attempt(before, AttemptState.LOST, "finished_at")
    job.live_attempt = None
    move_job(job, JobState.QUEUED, start.at, {"attempt": before.number}, "live_attempt")


def _write(start: Start, job: Job, state: AttemptState) -> StartOutcome:
    """Of a QUEUED job."""
    server, slot = split_slot(start.slot)
    number = job.attempts_made + 1
    attempt = new_row(
        Attempt,
        id=start.attempt_id,
        job_id=job.id,
        number=number,
        round=job.round,
        state=state,
        server=server,
        slot=slot,
        model=start.model,
        worker=start.worker,
        started_at=start.at,
    )
    if not insert_attempt(attempt):
        # written before and over by now, its reply lost; or the slot is another's
        return StartOutcome.STARTED if _has_begun(start) else StartOutcome.SLOT_TAKEN
    job.live_attempt = start.attempt_id
    job.attempts_made = number
    job.started_at = job.started_at or start.at
    move_job(
        job,
        JobState.RUNNING,
        start.at,
        {"attempt": number, "server": server, "slot": slot},
        "live_attempt",
        "attempts_made",
        "started_at",
    )
    return StartOutcome.STARTED


def _has_begun(start: Start) -> bool:
    """Whether the attempt's start is written."""
    return read_attempt(start.attempt_id) is not None
