"""Scheduled jobs (submitted with `run_at`) whose start time has come."""

from __future__ import annotations

from collections import defaultdict

from foundation.database import statements
from foundation.database.statements import value
from gpus.protocol import Ticket
from jobs import transitions
from jobs.domain.states import JobState
from jobs.execution import follow_ups
from jobs.models import Job
from jobs.ports import Ports
from jobs.sweeps.base import BATCH, SweepCount, in_batches, move_rows

LIMIT = 1000
BUDGET_SECONDS = 0.5
"""Many jobs may have the same start time; the rest is queued at the next tick."""

_due = statements.Read(
    lambda: (
        Job.objects.filter(state=JobState.SCHEDULED.value, run_at__lte=value(Job, "run_at", "now"))
        .order_by("run_at")
        .values_list("id", "run_at")[:LIMIT]
    )
)


def sweep(ports: Ports, *, batch: int = BATCH) -> SweepCount:
    """Queue the due jobs, ordered by their `run_at`.

    The sweep `reconcile` pushes tickets that Redis does not take. Paused while the clock comparison of a new
    process is incomplete, because an early start is irreversible.
    """
    began, queued = ports.clock.monotonic(), list[Job]()
    found = _due(now=ports.clock.now())
    if found and ports.clock_watch.is_learning():
        return SweepCount(notes=(f"paused: {ports.clock_watch.report()}",))
    now = ports.clock.now()  # the comparison of clocks may have set the time back
    due = [job_id for job_id, run_at in found if run_at <= now]
    count = SweepCount()
    for some in in_batches(due, batch):
        count += move_rows(
            "due_starts", sorted(some), lambda job: transitions.queue_scheduled(job, now), queued
        )
        if ports.clock.monotonic() - began > BUDGET_SECONDS:
            break
    if queued:
        ports.announce([job.id for job in queued])
    lines: dict[tuple[str, str], list[Ticket]] = defaultdict(list)
    for job in queued:
        lines[job.fleet, job.pool].append(job.ticket)
    for (fleet, pool), tickets in lines.items():
        follow_ups.push_tickets(fleet, pool, tickets, ports)
    return count
