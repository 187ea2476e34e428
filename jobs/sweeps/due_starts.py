"""Jobs that were submitted for later, and whose time has come."""

from __future__ import annotations

from collections import defaultdict

from django.db import transaction

from gpus.models import prepared
from gpus.models.prepared import value
from gpus.protocol import Ticket
from jobs import transitions
from jobs.models import Job
from jobs.services import finish
from jobs.services.ports import Ports
from jobs.states import JobState
from jobs.sweeps.base import SweepCount, sweep_rows

LIMIT = 1000

_due = prepared.Read(
    lambda: (
        Job.objects.filter(state=JobState.SCHEDULED.value, run_at__lte=value(Job, "run_at", "now"))
        .order_by("run_at")
        .values_list("id", flat=True)[:LIMIT]
    )
)


def sweep(ports: Ports) -> SweepCount:
    """They stand in line from now on, by their time. What Redis does not take is the reconciler's."""
    now = ports.clock.now()
    lines: dict[tuple[str, str], list[Ticket]] = defaultdict(list)
    queued: list[str] = []

    def go(job_id: str) -> bool:
        with transaction.atomic():
            job = transitions.queue_at_its_time(job_id, now)
        if job is None:
            return False
        lines[job.fleet, job.pool].append(job.ticket)
        queued.append(job.id)
        return True

    count = sweep_rows("due_starts", _due(now=now), go)
    if queued:
        ports.announce(queued)
    for (fleet, pool), tickets in lines.items():
        finish.push_tickets(fleet, pool, tickets, ports)
    return count
