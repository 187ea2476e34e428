"""The line as the database knows it: waiting jobs in order of their places, page by page."""

from __future__ import annotations

from django.db.models import Q

from gpus.protocol import Ticket
from jobs.models import Job
from jobs.states import JobState

PAGE = 1000

Place = tuple[int, str]
"""(place_us, job id): where a page ended."""
START: Place = (-1, "")


def waiting_tickets(
    pool: str, *, after: Place = START, before_us: int | None = None
) -> tuple[list[Ticket], Place | None]:
    """One page of QUEUED jobs, and where the next one begins (None: this was the last). before_us: only
    places up to here, microseconds since the epoch."""
    place_us, job_id = after
    jobs = Job.objects.filter(state=JobState.QUEUED.value, pool=pool, place_us__gte=place_us)
    if before_us is not None:
        jobs = jobs.filter(place_us__lte=before_us)
    jobs = jobs.exclude(Q(place_us=place_us) & Q(id__lte=job_id)).order_by("place_us", "id")
    fields = ("id", "model", "tenant_id", "priority", "place_us", "avoid_server")
    tickets = [
        Ticket(job, model, str(tenant), priority, place, avoid or None)
        for job, model, tenant, priority, place, avoid in jobs.values_list(*fields)[:PAGE]
    ]
    if len(tickets) < PAGE:
        return tickets, None
    return tickets, (tickets[-1].place_us, tickets[-1].job_id)
