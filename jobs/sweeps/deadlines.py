"""Waiting jobs whose deadline, or deadline to start, has passed. A running job's deadline is its worker's.

A ticket leaves the line before its job ends, so that no slot is leased to a dead job. Without Redis the job
ends in the database alone: a claim that comes later finds it final and gives the lease back unused.
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
from jobs.sweeps.base import SweepCount, clocks_disagree, in_batches, move_rows, sweep_rows
from jobs.transitions import Ended

Due = Callable[[Job], datetime]
"""When its time is over."""
Reason = Callable[[Job], tuple[str, str]]
"""The error's code and message."""
LIMIT = 500
_NOT_WAITING = [JobState.RUNNING.value, JobState.CANCELLING.value]


def sweep(ports: Ports) -> SweepCount:
    """repaired: jobs ended FAILED."""
    now = ports.clock.now()
    count = SweepCount()
    for overdue, due, reason in (
        (_past_deadline, attrgetter("deadline_at"), _deadline_passed),
        (_past_start_deadline, attrgetter("start_deadline_at"), _never_started),
    ):
        for jobs in in_batches(overdue(now=now)):
            count += end_jobs("deadlines", jobs, due, ports, reason)
    return count


def waiting_and(**overdue: Any) -> QuerySet[Job]:
    """Jobs that wait and meet these conditions, without payload, `LIMIT` at most."""
    # "not running" is no index condition: asked for the waiting ones, SQLite reads the whole line
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
    """Fails these waiting jobs. Tickets are removed first, outside the transaction; a job that is on a slot
    by now is left alone. Does nothing while clocks disagree: a failed job stays failed."""
    if jobs and (why := clocks_disagree(ports)):
        return why
    # the jobs were found by the time of before: comparing the clocks may have set it back
    now = ports.clock.now()
    jobs = [job for job in jobs if due(job) <= now]
    off_the_line: list[Job] = []
    ends: list[Ended] = []

    def take_out(job: Job) -> bool:
        if job.state != JobState.QUEUED or not _is_held(job, ports):
            off_the_line.append(job)
        return False

    looked = sweep_rows(sweep, jobs, take_out)
    off_the_line.sort(key=lambda job: job.id)
    moved = move_rows(sweep, off_the_line, lambda job: _fail(job, now, reason), ends)
    follow_ups.after_ends(ends, ports)
    return looked + SweepCount(0, moved.repaired, moved.failed)


def _fail(job: Job, now: datetime, reason: Reason) -> Ended | None:
    """Inside a transaction."""
    code, message = reason(job)
    ended = transitions.end_waiting(job.id, JobState.FAILED, now, code=code, message=message)
    return ended if ended.won else None


def _is_held(job: Job, ports: Ports) -> bool:
    """Takes the job out of the line; True: it is on a slot already (its start or its end is under way)."""
    try:
        return not remove_tickets(job, ports)
    except LeasingUnavailable:
        return False


def _deadline_passed(job: Job) -> tuple[str, str]:
    if job.started_at is not None:
        return DEADLINE_EXCEEDED, "Its deadline passed while it waited for another attempt."
    return DEADLINE_EXCEEDED, "Its deadline passed while it waited in line; it never started."


def _never_started(_: Job) -> tuple[str, str]:
    return START_DEADLINE_EXCEEDED, "It did not start before its start deadline; it never started."
