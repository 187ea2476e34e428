"""The line as the database knows it: waiting jobs in order of their places, page by page; and what tenants
got lately, by the ledger of their attempts: a rebuild must not forget whose turn it was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Max, Sum

from foundation.database import statements
from foundation.database.statements import value
from foundation.ids import lowest_id
from gpus.protocol import BANDS, Ticket, standing_band
from jobs.domain.states import JobState
from jobs.models import Attempt, Job, Tenant

RECENT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Share:
    """seconds: how much more GPU time the tenant got than the one of the same line that got least."""

    priority: int
    tenant: str
    seconds: float


_served = statements.Read(  # ids sort by time: the primary key finds the recent ones
    lambda: (
        Attempt.objects.filter(id__gte=value(Attempt, "id"), job__pool=value(Job, "pool"), gpu_seconds__gt=0)
        .order_by()
        .values_list("job__priority", "job__tenant_id")
        .annotate(Sum("gpu_seconds"), Max("gpu_seconds"))
    )
)
_queued = statements.Read(
    lambda: (
        Job.objects.filter(pool=value(Job, "pool"), state=JobState.QUEUED.value)
        .order_by()
        .values_list("priority", "tenant_id")
        .distinct()
    )
)

_rules = statements.Read(lambda: Tenant.objects.order_by().values_list("pk", "highest_band", "weight"))


def recent_shares(pool: str, now: datetime) -> list[Share]:
    """Of the tenants that were served in the last ten minutes, band by band."""
    served = _served(pool=pool, id=lowest_id(now.timestamp() - RECENT_SECONDS))
    if not served:
        return []
    got: list[dict[int, float]] = [defaultdict(float) for _ in BANDS]
    longest = [0.0 for _ in BANDS]
    queued = _queued(pool=pool)
    rules = {pk: (band, weight) for pk, band, weight in _rules()}  # last: one may be new
    granted = {pk: band for pk, (band, _) in rules.items()}
    for priority, tenant, seconds, most in served:
        band = standing_band(priority, granted[tenant])
        got[band][tenant] += seconds
        longest[band] = max(longest[band], most)
    waiting: list[set[int]] = [set() for _ in BANDS]
    for priority, tenant in queued:
        waiting[standing_band(priority, granted[tenant])].add(tenant)
    weights = {tenant: rules[tenant][1] for band in got for tenant in band}
    return [
        Share(band * 3 + 1, str(tenant), seconds)
        for band in range(len(BANDS))
        for tenant, seconds in debts(got[band], waiting[band], weights, longest[band]).items()
    ]


def debts(
    got: Mapping[int, float], waiting: set[int], weights: Mapping[int, float], longest: float
) -> dict[int, float]:
    """GPU-seconds by tenant, beyond the share of the waiting tenant that got least for its weight. Never more
    than the longest run: that far apart start-time fair queueing lets two tenants get, and one that was idle
    must not be given what it did not ask for."""
    if not waiting:
        return {}
    least = min(got.get(tenant, 0.0) / weights.get(tenant, 1.0) for tenant in waiting)
    found = {
        tenant: min(seconds - least * weights.get(tenant, 1.0), longest) for tenant, seconds in got.items()
    }
    return {tenant: seconds for tenant, seconds in found.items() if seconds > 0}


PAGE = 1000

Place = tuple[int, str]
"""(place_us, job id): where a page ended."""
START: Place = (-1, "")
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
        .values_list("id", "model", "tenant_id", "priority", "place_us", "avoid_server")[:PAGE]
    )
)


def waiting_tickets(
    pool: str, *, after: Place = START, before_us: int | None = None
) -> tuple[list[Ticket], Place | None]:
    """One page of QUEUED jobs, and where the next one begins (None: this was the last). before_us: only
    places up to here, microseconds since the epoch."""
    place_us, job_id = after
    rows = _page(pool=pool, place_us=place_us, id=job_id, before=_NEVER if before_us is None else before_us)
    tickets = [
        Ticket(job, model, str(tenant), priority, place, avoid or None)
        for job, model, tenant, priority, place, avoid in rows
    ]
    if len(tickets) < PAGE:
        return tickets, None
    return tickets, (tickets[-1].place_us, tickets[-1].job_id)
