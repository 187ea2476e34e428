"""Waiting jobs whose deadline or start deadline has passed. A running job's deadline is enforced by its
worker.

The ticket is removed from the queue before the job ends, so that no slot is leased for an ended job. Without
Redis only the row changes: a later claim reads the final state and returns the lease unused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

from django.db.models import QuerySet

from foundation.database import statements
from foundation.database.statements import value
from gpus.errors import LeasingUnavailable
from jobs import transitions
from jobs.domain.errors import DEADLINE_EXCEEDED, START_DEADLINE_EXCEEDED
from jobs.domain.states import JobState
from jobs.execution import follow_ups
from jobs.execution.follow_ups import remove_tickets
from jobs.models import Job
from jobs.ports import Ports
from jobs.sweeps.base import BATCH, SweepCount, clocks_disagree, in_batches, move_rows, sweep_rows
from jobs.transitions import Ended

Due = Callable[[Job], datetime]
"""Returns the deadline of a job."""
Reason = Callable[[Job], tuple[str, str]]
"""Returns the error code and message of a job that missed its deadline."""
LIMIT = 500
_NOT_WAITING = [JobState.RUNNING.value, JobState.CANCELLING.value]


def sweep(ports: Ports, *, batch: int = BATCH) -> SweepCount:
    """repaired: jobs ended FAILED."""
    now = ports.clock.now()
    count = SweepCount()
    for overdue, due, reason in (
        (_past_deadline, attrgetter("deadline_at"), _deadline_passed),
        (_past_start_deadline, attrgetter("start_deadline_at"), _never_started),
    ):
        for jobs in in_batches(overdue(now=now), batch):
            count += end_jobs("deadlines", jobs, due, ports, reason)
    return count


def waiting_and(**overdue: Any) -> QuerySet[Job]:
    """Return a query of waiting jobs that meet these conditions, without payloads, at most `LIMIT`."""
    # exclude() instead of a filter on the waiting states, for which SQLite would read the whole queue
    jobs = Job.objects.filter(**overdue, finished_at=None).exclude(state__in=_NOT_WAITING)
    return jobs.defer("payload", "result").order_by()[:LIMIT]


_past_deadline = statements.Read(
    lambda: waiting_and(deadline_at__isnull=False, deadline_at__lte=value(Job, "deadline_at", "now"))
)
_past_start_deadline = statements.Read(
    lambda: waiting_and(
        start_deadline_at__isnull=False,
        started_at=None,
        start_deadline_at__lte=value(Job, "start_deadline_at", "now"),
    )
)


def end_jobs(sweep: str, jobs: Sequence[Job], due: Due, ports: Ports, reason: Reason) -> SweepCount:
    """End waiting jobs as FAILED, except those that a worker has claimed meanwhile.

    Tickets are removed first, outside the transaction. Paused while clocks disagree, because a failure is
    irreversible. sweep: name for logs. due: the deadline of a job. reason: its error code and message.
    """
    if jobs and (why := clocks_disagree(ports)):
        return why
    # the comparison of clocks may have set the time back since the jobs were selected
    now = ports.clock.now()
    jobs = [job for job in jobs if due(job) <= now]
    not_held: list[Job] = []
    ends: list[Ended] = []

    def remove_ticket(job: Job) -> bool:
        if job.state != JobState.QUEUED or _remove_from_queue(job, ports):
            not_held.append(job)
        return False

    looked = sweep_rows(sweep, jobs, remove_ticket)
    not_held.sort(key=lambda job: job.id)
    moved = move_rows(sweep, not_held, lambda job: _fail(job, now, reason), ends)
    follow_ups.after_ends(ends, ports)
    return looked + SweepCount(0, moved.repaired, moved.failed)


def _fail(job: Job, now: datetime, reason: Reason) -> Ended | None:
    """End the job as FAILED, inside a transaction; None if its state has changed."""
    code, message = reason(job)
    ended = transitions.end_waiting(job.id, JobState.FAILED, now, code=code, message=message)
    return ended if ended.won else None


def _remove_from_queue(job: Job, ports: Ports) -> bool:
    """Remove the job's ticket; False if the job already holds a slot (it is starting or ending)."""
    try:
        return remove_tickets(job, ports)
    except LeasingUnavailable:
        return True


def _deadline_passed(job: Job) -> tuple[str, str]:
    if job.started_at is not None:
        return DEADLINE_EXCEEDED, "The deadline passed while the job waited for another attempt."
    return DEADLINE_EXCEEDED, "The deadline passed while the job was queued; it never started."


def _never_started(_: Job) -> tuple[str, str]:
    return START_DEADLINE_EXCEEDED, "The job did not start before its start deadline."
