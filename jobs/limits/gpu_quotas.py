"""The quota of a tenant's UTC day, in GPU-seconds (`jobs.limits.gpu_usage`). A tenant goes over it by what it
runs when the last second is used: a run is not broken off for a quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from foundation.database import statements
from foundation.ttl_cache import TtlCache
from gpus.leasing.contract import Leases
from gpus.leasing.values import ParkedFor, Wakes
from gpus.registry import queries as registry
from jobs.domain.errors import QuotaExhausted
from jobs.explain.snapshot import Quota
from jobs.limits.gpu_usage import day_of, used_seconds
from jobs.limits.tenant_limits import limits_of
from jobs.models import Tenant

REMEMBER_SECONDS = 2.0

# of the process, like django.core.cache: its callers have no owner of it to pass
_remembered: TtlCache[tuple[int, datetime], float] = TtlCache(lambda: REMEMBER_SECONDS, max_entries=10_000)


_limited = statements.Read(
    lambda: Tenant.objects.exclude(daily_gpu_seconds=None).order_by().values_list("pk", "daily_gpu_seconds")
)


def exhausted(now: datetime) -> Mapping[int, float]:
    """Tenants whose day is used up, with what they used."""
    limits: dict[int, float] = dict(_limited())
    used = used_seconds(limits, now) if limits else {}
    return {tenant: seconds for tenant, seconds in used.items() if seconds >= limits[tenant]}


def quota_of(tenant_id: int, now: datetime) -> Quota | None:
    """None: it has none; what was used is remembered for two seconds."""
    limit = limits_of(tenant_id).daily_gpu_seconds
    if limit is None:
        return None
    left = (day_of(now) + timedelta(days=1) - now).total_seconds()
    return Quota(used=_recently_used(tenant_id, now), limit=limit, left_seconds=left)


def quota_refusal(tenant_id: int, now: datetime) -> QuotaExhausted | None:
    """None while there is something left of the day."""
    quota = quota_of(tenant_id, now)
    if quota is None or not quota.is_exhausted:
        return None
    return QuotaExhausted(
        f"The tenant has used {quota.used:.0f} of its {quota.limit:g} GPU-seconds of this UTC day.",
        retry_after_seconds=quota.left_seconds,
    )


def park_exhausted(fleet: str, leases: Leases, tenants: Iterable[int]) -> tuple[Wakes, ...]:
    """Tells every pool of the fleet who is held back; all others go on. Raises LeasingUnavailable."""
    names = [str(tenant) for tenant in sorted(tenants)]
    wakes: list[Wakes] = []
    for pool in registry.pools(fleet=fleet):
        wakes += leases.set_paused_tenants(pool.name, names, reason=ParkedFor.QUOTA)
    return tuple(wakes)


def forget() -> None:
    _remembered.clear()


def _recently_used(tenant_id: int, now: datetime) -> float:
    return _remembered.get((tenant_id, day_of(now)), lambda: used_seconds([tenant_id], now)[tenant_id])
