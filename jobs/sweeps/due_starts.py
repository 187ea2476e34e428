"""Jobs that were submitted for later, and whose time has come."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

import structlog
from django.db import OperationalError, transaction

from gpus.models import prepared
from gpus.models.prepared import value
from gpus.protocol import Ticket
from jobs import transitions
from jobs.models import Job
from jobs.services import finish
from jobs.services.ports import Ports
from jobs.states import JobState
from jobs.sweeps.base import SweepCount, sweep_rows

log = structlog.get_logger(__name__)

LIMIT = 1000
BATCH = 50
"""Jobs of one transaction: a commit each would keep the tick's other sweeps waiting."""
BUDGET_SECONDS = 0.5
"""Many may have asked for the same moment; what is left goes with the next tick."""

_due = prepared.Read(
    lambda: (
        Job.objects.filter(state=JobState.SCHEDULED.value, run_at__lte=value(Job, "run_at", "now"))
        .order_by("run_at")
        .values_list("id", flat=True)[:LIMIT]
    )
)


def sweep(ports: Ports) -> SweepCount:
    """They stand in line from now on, by their time. What Redis does not take is the reconciler's."""
    now, began = ports.clock.now(), ports.clock.monotonic()
    due, queued = _due(now=now), list[Job]()
    count = SweepCount()
    for first in range(0, len(due), BATCH):
        count += _queue(due[first : first + BATCH], now, queued)
        if ports.clock.monotonic() - began > BUDGET_SECONDS:
            break
    if queued:
        ports.announce([job.id for job in queued])
    lines: dict[tuple[str, str], list[Ticket]] = defaultdict(list)
    for job in queued:
        lines[job.fleet, job.pool].append(job.ticket)
    for (fleet, pool), tickets in lines.items():
        finish.push_tickets(fleet, pool, tickets, ports)
    return count


def _queue(ids: Sequence[str], now: datetime, queued: list[Job]) -> SweepCount:
    """In one transaction, or where that fails each in its own. queued: the jobs that went are added."""

    def go(job_id: str) -> bool:
        with transaction.atomic():
            job = transitions.queue_at_its_time(job_id, now)
        if job is not None:
            queued.append(job)
        return job is not None

    try:
        with transaction.atomic():
            gone = [transitions.queue_at_its_time(job_id, now) for job_id in ids]
    except OperationalError:  # the database is away or busy: one by one would take each its time-out
        log.exception("sweep_row_failed", sweep="due_starts", row=str(ids)[:200])
        return SweepCount(len(ids), failed=len(ids))
    except Exception:
        log.exception("sweep_row_failed", sweep="due_starts", row=str(ids)[:200])
        return sweep_rows("due_starts", ids, go)
    found = [job for job in gone if job is not None]
    queued += found
    return SweepCount(len(ids), len(found))
