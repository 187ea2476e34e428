"""GPU-seconds that tenants have used in a UTC day, and which tenants that holds back. The quota that a submit
is measured by is in `jobs.limits.submit_limits`.

A tenant goes over its quota by what it runs when the last second is used: a run is not broken off for a
quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from django.db.models import Sum

from foundation.database import statements
from foundation.database.statements import value
from gpus.leasing.contract import Leases
from gpus.leasing.values import ParkedFor, Wakes
from gpus.registry import queries
from jobs.domain.states import JobState
from jobs.models import Attempt, Event, Job, Rollup, SweepRun, Tenant
from jobs.reports.rollups import CLOSE, CURSOR, HOUR

MOST_EVENTS = 20_000
"""Behind the rollups; where they are further behind than that, nobody sums up, and doctor says so."""
LOOKS = 3
CHUNK = 512

_limited = statements.Read(
    lambda: Tenant.objects.exclude(daily_gpu_seconds=None).order_by().values_list("pk", "daily_gpu_seconds")
)


def exhausted(now: datetime) -> Mapping[int, float]:
    """Tenants whose day is used up, with what they used."""
    limits: dict[int, float] = dict(_limited())
    used = used_seconds(limits, now) if limits else {}
    return {tenant: seconds for tenant, seconds in used.items() if seconds >= limits[tenant]}


def park_exhausted(fleet: str, leases: Leases, tenants: Iterable[int]) -> tuple[Wakes, ...]:
    """Tells every pool of the fleet who is held back; all others go on. Raises LeasingUnavailable."""
    names = [str(tenant) for tenant in sorted(tenants)]
    wakes: list[Wakes] = []
    for pool in queries.pools(fleet=fleet):
        wakes += leases.set_paused_tenants(pool.name, names, reason=ParkedFor.QUOTA)
    return tuple(wakes)


_cursor_note = statements.Read(lambda: SweepRun.objects.filter(name=CURSOR).values_list("note", flat=True))
_rolled_up = statements.ReadAmong(
    (Rollup, "tenant"),
    rows=lambda tenants: (
        Rollup.objects.filter(span_seconds=HOUR, at__gte=value(Rollup, "at", "day"), tenant__pk__in=tenants)
        .order_by()
        .values_list("tenant")
        .annotate(Sum("gpu_seconds"))
    ),
)
# The jobs first: "not over" is the condition of their index that SQLite can prove whatever the values are;
# "live", the attempts' own, it cannot with bound ones.
_live = statements.ReadAmong(
    (Job, "tenant"),
    rows=lambda tenants: (
        Attempt.objects.filter(
            pk__in=Job.objects.filter(tenant__pk__in=tenants, state=JobState.RUNNING.value, finished_at=None)
            .order_by()
            .values("live_attempt")
        )
        .order_by()
        .values_list("pk", "job__tenant", "started_at")
    ),
)
_closed = statements.ReadAmong(
    (Job, "tenant"),
    rows=lambda tenants: (
        Event.objects.filter(
            id__gt=value(Event, "id", "after"),
            id__lte=value(Event, "id", "last"),
            type__in=CLOSE,
            job__tenant__pk__in=tenants,
        )
        .order_by("id")
        .values_list("job_id", "job__tenant", "at", "data")
    ),
)
_attempts_of = statements.ReadAmong(
    (Attempt, "job"),
    rows=lambda ids: (
        Attempt.objects.filter(job__pk__in=ids)
        .order_by()
        .values_list("pk", "job_id", "number", "gpu_seconds")
    ),
)


def day_of(now: datetime) -> datetime:
    """Where the UTC day begins."""
    return now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def used_seconds(tenants: Iterable[int], now: datetime) -> dict[int, float]:
    """By tenant; six short queries."""
    day, chosen = day_of(now), list(tenants)
    used = dict.fromkeys(chosen, 0.0)
    if not chosen:
        return used
    for _ in range(LOOKS):
        cursor = _summed_up_to()
        by_attempt = _running(chosen, day, now)  # first: what ends meanwhile is an end, counted once
        by_attempt |= _ended_since(cursor, chosen, day)
        summed_up = _rolled_up(chosen, day=day)
        if _summed_up_to() == cursor:
            break  # else what was summed up meanwhile may be on both sides
    for tenant, seconds in [*by_attempt.values(), *summed_up]:
        used[tenant] += seconds
    return used


def _summed_up_to() -> int:
    return int(_cursor_note.first() or 0)


def _running(chosen: list[int], day: datetime, now: datetime) -> dict[str, tuple[int, float]]:
    """Tenant and seconds of today by attempt."""
    return {
        attempt: (tenant, max(0.0, (now - max(started_at, day)).total_seconds()))
        for attempt, tenant, started_at in _live(chosen)
    }


def _ended_since(cursor: int, chosen: list[int], day: datetime) -> dict[str, tuple[int, float]]:
    """The same of attempts that ended today and are not summed up yet. Without them a day that is used up
    would be open again for as long as the rollups are behind, at each end."""
    ends: dict[tuple[str, int], int] = {}
    for job, tenant, at, data in _closed(chosen, after=cursor, last=cursor + MOST_EVENTS):
        if at >= day and (number := data.get("attempt")) is not None:
            ends[job, number] = tenant
    jobs = list(dict.fromkeys(job for job, _ in ends))
    return {
        attempt: (ends[job, number], seconds or 0.0)
        for at in range(0, len(jobs), CHUNK)
        for attempt, job, number, seconds in _attempts_of(jobs[at : at + CHUNK])
        if (job, number) in ends
    }
