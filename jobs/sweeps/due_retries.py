"""Jobs between two attempts whose retry backoff has passed."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from foundation.database import statements
from foundation.database.statements import value
from gpus.protocol import Ticket
from jobs import transitions
from jobs.domain.states import JobState
from jobs.execution import follow_ups
from jobs.models import Job
from jobs.ports import Ports
from jobs.sweeps.base import BATCH, SweepCount, in_batches, move_rows
from jobs.transitions import Ended

LIMIT = 500

_due = statements.Read(
    lambda: (
        Job.objects.filter(state=JobState.RETRYING.value, due_at__lte=value(Job, "due_at", "now"))
        .order_by("due_at")
        .values_list("id", "cancel_requested_at", "cancelled_by_operator")[:LIMIT]
    )
)


def sweep(ports: Ports, *, batch: int = BATCH) -> SweepCount:
    """Queue the jobs again at their old place; cancel those with a requested cancel.

    Tickets are pushed together at the end; the sweep `reconcile` pushes those that Redis does not take now.
    """
    now, due = ports.clock.now(), _due(now=ports.clock.now())
    lines: dict[tuple[str, str], list[Ticket]] = defaultdict(list)
    moved: list[Job | Ended] = []
    count = SweepCount()
    for rows in in_batches(due, batch):
        count += move_rows("due_retries", sorted(rows), lambda row: _queue(row, now), moved)
    follow_ups.after_ends([one for one in moved if isinstance(one, Ended)], ports)
    queued = [one for one in moved if isinstance(one, Job)]
    if queued:
        ports.announce([job.id for job in queued])
    for job in queued:
        lines[job.fleet, job.pool].append(job.ticket)
    for (fleet, pool), tickets in lines.items():
        follow_ups.push_tickets(fleet, pool, tickets, ports)
    return count


def _queue(row: tuple[str, object, bool], now: datetime) -> Job | Ended | None:
    """Queue or cancel the job, inside a transaction; None if its state has changed."""
    job_id, cancel_requested_at, by_operator = row
    if cancel_requested_at is None:
        return transitions.queue_retry(job_id, now)
    ended = transitions.end_cancelled(job_id, now, by_operator=by_operator)
    return ended if ended.won else None
