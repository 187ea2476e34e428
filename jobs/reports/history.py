"""What ended lately, from the rollups: throughput, waits, runs and GPU time. Never a count over jobs.

Behind by what `jobs.sweeps.rollups` has not summed up yet: about ten seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from jobs.models import Rollup, Tenant
from jobs.reports.rollups import HOUR, MINUTE, TEN_MINUTES, Sums, percentile, span_begin


@dataclass(frozen=True, slots=True)
class Window:
    """seconds: how far it looks back. bucket_seconds: the width of one point of its charts, which is a span
    that rollups are kept in."""

    name: str
    seconds: int
    bucket_seconds: int

    @property
    def buckets(self) -> int:
        return self.seconds // self.bucket_seconds


WINDOWS = {
    window.name: window
    for window in (
        Window("1h", HOUR, MINUTE),
        Window("24h", 24 * HOUR, TEN_MINUTES),
        Window("7d", 168 * HOUR, HOUR),
    )
}


@dataclass(frozen=True, slots=True)
class ModelHistory:
    """What ended, bucket by bucket, the oldest first; `window.buckets` of them, the last one still open."""

    window: Window
    buckets: Sequence[Sums]
    total: Sums

    @property
    def per_minute(self) -> float:
        """Jobs that came to an end per minute, however they ended."""
        ended = self.total.completed + self.total.failed + self.total.cancelled
        return ended / self.window.seconds * 60

    def wait(self, share: float) -> float | None:
        """Percentile of the seconds from accepted to the first start; None for no job."""
        return percentile(self.total.waits, share)

    def run(self, share: float) -> float | None:
        """Percentile of the seconds from the first start to the end."""
        return percentile(self.total.runs, share)


@dataclass(slots=True)
class History:
    """begin: of the first bucket. gpu_seconds: by model and tenant."""

    window: Window
    begin: datetime
    _by_model: dict[str, list[Sums]] = field(default_factory=dict)
    gpu_seconds: dict[tuple[str, int], float] = field(default_factory=dict)

    @property
    def models(self) -> list[str]:
        return sorted(self._by_model)

    def line(self, model: str) -> ModelHistory:
        """Flat where the model has no history."""
        return _line(self.window, [self._by_model.get(model, [])])

    def all_models(self) -> ModelHistory:
        return _line(self.window, self._by_model.values())

    def gpu_seconds_by_tenant(self, models: Iterable[str]) -> dict[int, float]:
        """Of tenants that ended something on these models, also where that took no GPU time."""
        wanted, found = set(models), dict[int, float]()
        for (model, tenant), seconds in self.gpu_seconds.items():
            if model in wanted:
                found[tenant] = found.get(tenant, 0.0) + seconds
        return found


def history(window: Window, now: datetime) -> History:
    """One query over the rollups of the window: a row per bucket, model and tenant that had work in it."""
    last = span_begin(now, window.bucket_seconds)
    begin = last - timedelta(seconds=window.seconds - window.bucket_seconds)
    found = History(window, begin)
    rows = Rollup.objects.filter(span_seconds=window.bucket_seconds, at__gte=begin, at__lte=last).order_by()
    for at, model, tenant, *sums in rows.values_list(
        "at", "model", "tenant_id", "completed", "failed", "cancelled", "gpu_seconds", "waits", "runs"
    ):
        buckets = found._by_model.setdefault(model, [])
        buckets += [Sums() for _ in range(window.buckets - len(buckets))]
        one = Sums(*sums)
        buckets[int((at - begin).total_seconds() // window.bucket_seconds)].add(one)
        key = (model, tenant)
        found.gpu_seconds[key] = found.gpu_seconds.get(key, 0.0) + one.gpu_seconds
    return found


class RecentHistory:
    """`history`, cached for a twelfth of a bucket: open pages poll it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cached: dict[str, tuple[int, History]] = {}

    def __call__(self, window: Window, now: datetime) -> History:
        period = int(now.timestamp() // (window.bucket_seconds / 12))
        with self._lock:
            known = self._cached.get(window.name)
            if known is None or known[0] != period:
                known = self._cached[window.name] = (period, history(window, now))
            return known[1]


@dataclass(frozen=True, slots=True)
class Share:
    """got, entitled: shares of the GPU time, 0..1. entitled: the tenant's weight among the weights of all
    that had work."""

    tenant_id: int
    tenant: str
    gpu_seconds: float
    got: float
    entitled: float


def shares(gpu_seconds: Mapping[int, float]) -> list[Share]:
    """Who got how much, the most first. gpu_seconds: by tenant; a tenant that had work and got nothing is
    named with 0."""
    tenants = Tenant.objects.in_bulk(list(gpu_seconds))
    weights = sum(tenant.weight for tenant in tenants.values())
    total = sum(gpu_seconds[pk] for pk in tenants)
    found = [
        Share(
            pk,
            tenant.name,
            gpu_seconds[pk],
            gpu_seconds[pk] / total if total else 0.0,
            tenant.weight / weights,
        )
        for pk, tenant in tenants.items()
    ]
    return sorted(found, key=lambda share: (-share.gpu_seconds, share.tenant))


def _line(window: Window, models: Iterable[Sequence[Sums]]) -> ModelHistory:
    buckets, total = [Sums() for _ in range(window.buckets)], Sums()
    for one in models:
        for bucket, sums in zip(buckets, one, strict=False):
            bucket.add(sums)
            total.add(sums)
    return ModelHistory(window, buckets, total)
