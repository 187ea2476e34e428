"""GPU-seconds that tenants have used in a UTC day, and the tenants whose daily quota is exhausted. The check
at submit is in `jobs.limits.submit_limits`.

Running jobs are not stopped when the quota is used up, so a tenant can exceed it by the rest of its current
runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from django.db.models import Sum

from foundation.database import statements
from foundation.database.statements import value
from gpus.leasing.contract import Leases
from gpus.leasing.values import ParkedFor, Wakes
from gpus.registry import queries
from jobs.domain.states import JobState
from jobs.models import Attempt, Event, Job, Rollup, SweepRun, Tenant
from jobs.reports.rollups import CLOSE, CURSOR, HOUR, day_of

MAX_EVENTS = 20_000
"""Events read beyond the rollups. A larger lag means that the sweep `rollups` does not run; `doctor` reports
it."""
MAX_READS = 3
"""Attempts to read rollups and events of the same state."""
CHUNK = 512

_limited = statements.Read(
    lambda: Tenant.objects.exclude(daily_gpu_seconds=None).order_by().values_list("pk", "daily_gpu_seconds")
)


def exhausted(now: datetime) -> Mapping[int, float]:
    """Return the used GPU-seconds of each tenant that has exhausted its daily quota."""
    limits: dict[int, float] = dict(_limited())
    used = used_seconds(limits, now) if limits else {}
    return {tenant: seconds for tenant, seconds in used.items() if seconds >= limits[tenant]}


def park_exhausted(fleet: str, leases: Leases, tenants: Iterable[int]) -> tuple[Wakes, ...]:
    """Park exactly these tenants in every pool of the fleet (`gpus/leasing/lua/set_paused_tenants.lua`).

    Returns the wakes to send for tenants that are no longer parked. Raises LeasingUnavailable.
    """
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
# Through the jobs, because SQLite can use their partial index (finished_at IS NULL) with bound parameters,
# but not the attempts' index of live states.
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


def used_seconds(tenants: Iterable[int], now: datetime) -> dict[int, float]:
    """Return the GPU-seconds used today (UTC), by tenant, including running attempts; six short queries."""
    day, chosen = day_of(now), list(tenants)
    used = dict.fromkeys(chosen, 0.0)
    if not chosen:
        return used
    for _ in range(MAX_READS):
        cursor = _summed_up_to()
        by_attempt = _running(chosen, day, now)  # before the ends, which overwrite runs that end meanwhile
        by_attempt |= _ended_since(cursor, chosen, day)
        summed_up = _rolled_up(chosen, day=day)
        if _summed_up_to() == cursor:
            break  # else an end that was summed up meanwhile may be counted twice
    for tenant, seconds in [*by_attempt.values(), *summed_up]:
        used[tenant] += seconds
    return used


def _summed_up_to() -> int:
    return int(_cursor_note.first() or 0)


def _running(chosen: list[int], day: datetime, now: datetime) -> dict[str, tuple[int, float]]:
    """Return (tenant, seconds of today) of running attempts, by attempt id."""
    return {
        attempt: (tenant, max(0.0, (now - max(started_at, day)).total_seconds()))
        for attempt, tenant, started_at in _live(chosen)
    }


def _ended_since(cursor: int, chosen: list[int], day: datetime) -> dict[str, tuple[int, float]]:
    """Return (tenant, GPU-seconds) of attempts that ended today and are not in the rollups yet, by attempt
    id. Without them, each end would reopen an exhausted quota until the next rollup."""
    ends: dict[tuple[str, int], int] = {}
    for job, tenant, at, data in _closed(chosen, after=cursor, last=cursor + MAX_EVENTS):
        if at >= day and (number := data.get("attempt")) is not None:
            ends[job, number] = tenant
    jobs = list(dict.fromkeys(job for job, _ in ends))
    return {
        attempt: (ends[job, number], seconds or 0.0)
        for at in range(0, len(jobs), CHUNK)
        for attempt, job, number, seconds in _attempts_of(jobs[at : at + CHUNK])
        if (job, number) in ends
    }
