"""Reads the tickets of waiting jobs from the database, page by page, in the order of their places."""

from __future__ import annotations

from foundation.database import statements
from foundation.database.statements import value
from gpus.protocol import Ticket
from jobs.domain.states import JobState
from jobs.models import Job

PAGE = 1000

Place = tuple[int, str]
"""(place_us, job id) of the last ticket of a page; the place is in microseconds since the epoch."""
FIRST_PLACE: Place = (-1, "")
_NEVER = 2**63 - 1
_page = statements.Read(
    lambda: (
        Job.objects.filter(
            state=JobState.QUEUED.value,
            pool=value(Job, "pool"),
            place_us__gte=value(Job, "place_us"),
            place_us__lte=value(Job, "place_us", "before"),
        )
        .exclude(place_us=value(Job, "place_us"), id__lte=value(Job, "id"))
        .order_by("place_us", "id")
        .values_list("id", "model", "tenant_id", "priority", "place_us", "avoid_server", "near_server")[:PAGE]
    )
)


def waiting_tickets(
    pool: str, *, after: Place = FIRST_PLACE, before_us: int | None = None
) -> tuple[list[Ticket], Place | None]:
    """Return one page of the pool's QUEUED jobs, and the `after` of the next page (None: this was the last).

    before_us: only jobs with places up to this, microseconds since the epoch.
    """
    place_us, job_id = after
    rows = _page(pool=pool, place_us=place_us, id=job_id, before=_NEVER if before_us is None else before_us)
    tickets = [
        Ticket(job, model, str(tenant), priority, place, avoid or None, near)
        for job, model, tenant, priority, place, avoid, near in rows
    ]
    if len(tickets) < PAGE:
        return tickets, None
    return tickets, (tickets[-1].place_us, tickets[-1].job_id)
