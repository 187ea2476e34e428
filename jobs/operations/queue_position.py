"""Where a waiting job stands in line, changed by an operator.

The ticket leaves the line first: with it gone nobody can start the job, so that the row changes under no
worker's hands. Then the row, then the new ticket, made from the row. Whoever dies in between leaves a waiting
job without a ticket, which the reconciler finds.
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
_RACES = 5


def change_priority(job_id: str, priority: int, *, by: str, ports: Ports) -> Job:
    """Its place stays: among jobs of the new priority it stands by the time at which it came. Returns the
    row. Raises ValueError (priority is 1 to 9), Job.DoesNotExist, NotWaiting, LeasingUnavailable."""
    if not FIRST_PRIORITY <= priority <= LAST_PRIORITY:
        raise ValueError(f"a priority is a number from {FIRST_PRIORITY} to {LAST_PRIORITY}, not {priority}")
    return _change(job_id, lambda job: (priority, job.place_us), "change_priority", by, ports)


def run_next(job_id: str, *, by: str, ports: Ports) -> Job:
    """Priority 1, and a place before every other job that waits in its pool: so it goes before all others of
    its tenant, and in a FIFO pool before everybody, both in the highest band that its tenant was granted.
    In a fair pool it waits for its tenant's turn among those
    who have urgent jobs, and a lower band gets its sixteenth dispatch. Of two, the one asked for last goes
    first. Returns the row. Raises Job.DoesNotExist, NotWaiting, LeasingUnavailable."""
    return _change(job_id, _before_all_others, "run_next", by, ports)


def _change(job_id: str, wanted: Callable[[Job], tuple[int, int]], action: str, by: str, ports: Ports) -> Job:
    """wanted: priority and place. A row that changed meanwhile is looked at again."""
    for _ in range(_RACES):
        job = Job.objects.defer("payload", "result").get(id=job_id)
        if job.state not in WAITING or job.cancel_requested_at is not None:
            raise NotWaiting()
        priority, place_us = wanted(job)
        if (priority, place_us) == (job.priority, job.place_us):
            return job
        try:
            if job.state == JobState.QUEUED and not remove_tickets(job, ports):
                raise NotWaiting("The job is being started: a worker has its ticket.")
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
    raise NotWaiting("The job moves faster than it could be asked to wait elsewhere: ask again.")


def _before_all_others(job: Job) -> tuple[int, int]:
    others = Job.objects.filter(pool=job.pool).exclude(id=job.id).order_by("place_us")
    places = others.values_list("place_us", flat=True)
    first = [places.filter(state=state.value).first() for state in WAITING]  # each by the index of the line
    return FIRST_PRIORITY, min([job.place_us, *(place - 1 for place in first if place is not None)])
