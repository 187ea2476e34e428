"""Recent throughput, waits, run times and GPU time, read from the rollups instead of the jobs.

The values lag by about 10 s: what `jobs.sweeps.rollups` has not summed up yet is missing.
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
    """A time window of charts. seconds: its length. bucket_seconds: width of a point; one of the rollups'
    spans."""

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
    """A model's ends per bucket, `window.buckets` of them, oldest first; the last bucket is incomplete."""

    window: Window
    buckets: Sequence[Sums]
    total: Sums

    @property
    def per_minute(self) -> float:
        """Ended jobs per minute, of all outcomes."""
        ended = self.total.completed + self.total.failed + self.total.cancelled
        return ended / self.window.seconds * 60

    def wait(self, share: float) -> float | None:
        """Return a percentile of the seconds from submit to the first start; None without jobs. share:
        0..1."""
        return percentile(self.total.waits, share)

    def run(self, share: float) -> float | None:
        """Return a percentile of the seconds from the first start to the end; None without jobs. share:
        0..1."""
        return percentile(self.total.runs, share)


@dataclass(slots=True)
class History:
    """All models' ends in a window. begin: start of the first bucket. gpu_seconds: by (model, tenant id)."""

    window: Window
    begin: datetime
    _by_model: dict[str, list[Sums]] = field(default_factory=dict)
    gpu_seconds: dict[tuple[str, int], float] = field(default_factory=dict)

    @property
    def models(self) -> list[str]:
        return sorted(self._by_model)

    def line(self, model: str) -> ModelHistory:
        """Return a model's history; all zeros if no job of it ended in the window."""
        return _line(self.window, [self._by_model.get(model, [])])

    def all_models(self) -> ModelHistory:
        """Return the sum over all models."""
        return _line(self.window, self._by_model.values())

    def gpu_seconds_by_tenant(self, models: Iterable[str]) -> dict[int, float]:
        """Return GPU-seconds by tenant id, for tenants with ended jobs on these models, even if 0."""
        names, found = set(models), dict[int, float]()
        for (model, tenant), seconds in self.gpu_seconds.items():
            if model in names:
                found[tenant] = found.get(tenant, 0.0) + seconds
        return found


def history(window: Window, now: datetime) -> History:
    """Read a window's history: one query, a row per bucket, model and tenant with ended jobs."""
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
    """`history`, cached for a twelfth of a bucket, because open pages poll it."""

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
    """A tenant's share of GPU time. got: actual share, 0..1. entitled: its weight divided by the weights of
    all tenants with jobs, 0..1."""

    tenant_id: int
    tenant: str
    gpu_seconds: float
    got: float
    entitled: float


def shares(gpu_seconds: Mapping[int, float]) -> list[Share]:
    """Return the shares of tenants, largest first. gpu_seconds: by tenant id; 0 for a tenant with waiting
    jobs only."""
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
