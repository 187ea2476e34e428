"""Change a waiting job's place in the queue: its priority, or before all others.

The ticket is removed first, so that no worker starts the job while its row changes; then a new one is pushed
from the row. After a crash in between, the sweep `reconcile` pushes the missing ticket.

by: the actor named in the audit entry, which is written in the operation's transaction.
"""

from __future__ import annotations

from collections.abc import Callable

from django.db import transaction

from gpus.registry.audit import record
from jobs import transitions
from jobs.domain.errors import NotWaiting
from jobs.domain.states import JobState
from jobs.execution import follow_ups
from jobs.execution.follow_ups import remove_tickets
from jobs.models import Job
from jobs.ports import Ports
from jobs.transitions import WAITING

FIRST_PRIORITY, LAST_PRIORITY = 1, 9
_MAX_TRIES = 5


def change_priority(job_id: str, priority: int, *, by: str, ports: Ports) -> Job:
    """Change a waiting job's priority; among jobs of the new priority it is ordered by its time of submit.

    priority: 1 (first) to 9. Returns the row. Raises ValueError, Job.DoesNotExist, NotWaiting,
    LeasingUnavailable.
    """
    if not FIRST_PRIORITY <= priority <= LAST_PRIORITY:
        raise ValueError(f"a priority is a number from {FIRST_PRIORITY} to {LAST_PRIORITY}, not {priority}")
    return _change(job_id, lambda job: (priority, job.place_us), "change_priority", by, ports)


def run_next(job_id: str, *, by: str, ports: Ports) -> Job:
    """Give a waiting job priority 1 and a place before all other jobs that wait in its pool.

    It runs before its tenant's other jobs, in a FIFO pool before all jobs, within the highest band that its
    tenant was granted. In a fair pool it still waits for its tenant's turn among tenants with urgent jobs,
    and a waiting lower band gets 1 of 16 GPU-seconds (`gpus/leasing/lua/includes/shares.lua`). The last call
    wins. Returns the row. Raises Job.DoesNotExist, NotWaiting, LeasingUnavailable.
    """
    return _change(job_id, _first_in_queue, "run_next", by, ports)


def _change(job_id: str, place: Callable[[Job], tuple[int, int]], action: str, by: str, ports: Ports) -> Job:
    """Move a waiting job. place: returns the new priority and place (microseconds); called again if the row
    changed meanwhile."""
    for _ in range(_MAX_TRIES):
        job = Job.objects.defer("payload", "result").get(id=job_id)
        if job.state not in WAITING or job.cancel_requested_at is not None:
            raise NotWaiting()
        priority, place_us = place(job)
        if (priority, place_us) == (job.priority, job.place_us):
            return job
        try:
            if job.state == JobState.QUEUED and not remove_tickets(job, ports):
                raise NotWaiting("The job does not wait any more: a worker is starting it.")
            with transaction.atomic():
                moved = transitions.change_place(job, priority, place_us, ports.clock.now())
                if moved is not None:
                    record(by, action, f"job:{job_id}", priority=priority, before=job.priority)
        finally:
            if job.state == JobState.QUEUED:
                follow_ups.push_waiting(job_id, ports)
        if moved is not None:
            ports.announce([job_id])
            return moved
    raise NotWaiting("The job changed at the same time. Repeat the request.")


def _first_in_queue(job: Job) -> tuple[int, int]:
    others = Job.objects.filter(pool=job.pool).exclude(id=job.id).order_by("place_us")
    places = others.values_list("place_us", flat=True)
    # one query per state: each reads the first entry of an index
    first = [places.filter(state=state.value).first() for state in WAITING]
    return FIRST_PRIORITY, min([job.place_us, *(place - 1 for place in first if place is not None)])
