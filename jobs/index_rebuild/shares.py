"""The tenants' shares for a rebuilt index: the recent GPU time of each, summed up from their attempts, so
that fair sharing continues from there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Max, Sum

from foundation.database import statements
from foundation.database.statements import value
from foundation.ids import lowest_id
from gpus.protocol import BANDS, effective_band
from jobs.domain.states import JobState
from jobs.models import Attempt, Job, Tenant

RECENT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Share:
    """The excess GPU time of a tenant in a pool and priority band.

    priority: one of the band. seconds: how much more it got than the waiting tenant that got least, by
    weight.
    """

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
    """Return the shares of tenants that got GPU time in this pool in the last ten minutes, band by band."""
    served = _served(pool=pool, id=lowest_id(now.timestamp() - RECENT_SECONDS))
    if not served:
        return []
    got: list[dict[int, float]] = [defaultdict(float) for _ in BANDS]
    longest = [0.0 for _ in BANDS]
    queued = _queued(pool=pool)
    rules = {pk: (band, weight) for pk, band, weight in _rules()}  # read last: has the tenants of both
    granted = {pk: band for pk, (band, _) in rules.items()}
    for priority, tenant, seconds, most in served:
        band = effective_band(priority, granted[tenant])
        got[band][tenant] += seconds
        longest[band] = max(longest[band], most)
    waiting: list[set[int]] = [set() for _ in BANDS]
    for priority, tenant in queued:
        waiting[effective_band(priority, granted[tenant])].add(tenant)
    weights = {tenant: rules[tenant][1] for band in got for tenant in band}
    return [
        Share(band * 3 + 1, str(tenant), seconds)
        for band in range(len(BANDS))
        for tenant, seconds in excess_seconds(got[band], waiting[band], weights, longest[band]).items()
    ]


def excess_seconds(
    got: Mapping[int, float], waiting: set[int], weights: Mapping[int, float], longest: float
) -> dict[int, float]:
    """Return, by tenant, the GPU-seconds beyond the share of the waiting tenant that got least for its
    weight.

    got: GPU-seconds by tenant. waiting: tenants with queued jobs. weights: by tenant. longest: seconds of the
    longest run, the most that is returned: start-time fair queueing lets two tenants drift apart by one run,
    and an idle tenant must not collect more.
    """
    if not waiting:
        return {}
    least = min(got.get(tenant, 0.0) / weights.get(tenant, 1.0) for tenant in waiting)
    found = {
        tenant: min(seconds - least * weights.get(tenant, 1.0), longest) for tenant, seconds in got.items()
    }
    return {tenant: seconds for tenant, seconds in found.items() if seconds > 0}
