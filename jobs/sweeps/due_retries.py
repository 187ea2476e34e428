"""Jobs between two attempts whose pause is over."""

from __future__ import annotations

from collections import defaultdict

from django.db import transaction

from gpus.models import prepared
from gpus.models.prepared import value
from gpus.protocol import Ticket
from jobs import transitions
from jobs.errors import CANCELLED
from jobs.models import Job
from jobs.services import finish
from jobs.services.ports import Ports
from jobs.states import JobState
from jobs.sweeps.base import SweepCount, sweep_rows

LIMIT = 500

_due = prepared.Read(
    lambda: (
        Job.objects.filter(state=JobState.RETRYING.value, due_at__lte=value(Job, "due_at", "now"))
        .order_by("due_at")
        .values_list("id", "cancel_requested_at")[:LIMIT]
    )
)


def sweep(ports: Ports) -> SweepCount:
    """They stand in line again at their old place; one whose cancel was asked for ends. Tickets are pushed
    together at the end, and what Redis does not take now is the reconciler's."""
    now = ports.clock.now()
    lines: dict[tuple[str, str], list[Ticket]] = defaultdict(list)
    queued: list[str] = []

    def go_on(row: tuple[str, object]) -> bool:
        job_id, cancel_requested_at = row
        if cancel_requested_at is not None:
            with transaction.atomic():
                ended = transitions.end_waiting(
                    job_id, JobState.CANCELLED, now, code=CANCELLED, message="Cancelled on request."
                )
            finish.after_end(ended, ports)
            return ended.won
        with transaction.atomic():
            job = transitions.queue_again(job_id, now)
        if job is None:
            return False
        lines[job.fleet, job.pool].append(job.ticket)
        queued.append(job.id)
        return True

    count = sweep_rows("due_retries", _due(now=now), go_on)
    if queued:
        ports.announce(queued)
    for (fleet, pool), tickets in lines.items():
        finish.push_tickets(fleet, pool, tickets, ports)
    return count
