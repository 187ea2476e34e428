"""Metrics of schedules; `jobs.api.metrics` collects them at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from django.db.models import Q
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from jobs.reports import counters
from jobs.reports.counters import Name
from workflows.metrics import buckets
from workflows.schedules.domain.policy import Outcome
from workflows.schedules.execution.launch import LAG_BOUNDS_SECONDS
from workflows.schedules.models import Firing, Schedule


def collect(now: datetime, *, name_tenants: bool) -> Iterator[Metric]:
    """Yield the metrics."""
    yield _schedules(now)
    firings = CounterMetricFamily(
        "dispatcher_firings", "Due times of schedules by outcome.", labels=["outcome", "reason"]
    )
    for outcome, reason, count in counters.read(Name.FIRINGS):
        firings.add_metric([outcome, reason], count)
    yield firings
    lag = HistogramMetricFamily("dispatcher_firing_lag_seconds", "From a due time to its start.")
    counts = Counter({int(code): count for _, code, count in counters.read(Name.FIRING_LAGS)})
    lag.add_metric([], buckets(counts, LAG_BOUNDS_SECONDS), sum_value=None)
    yield lag
    yield GaugeMetricFamily(
        "dispatcher_firings_waiting",
        "Firings that wait for an earlier one, or that a backfill has not started.",
        value=Firing.objects.filter(outcome=Outcome.WAITING.value).count(),
    )
    due = Schedule.objects.filter(next_at__lte=now).order_by("next_at")
    oldest = due.values_list("next_at", flat=True).first()
    overdue = 0.0 if oldest is None else (now - oldest).total_seconds()
    yield GaugeMetricFamily(
        "dispatcher_schedules_overdue_seconds", "Lateness of the schedule that is due longest.", value=overdue
    )


def _schedules(now: datetime) -> Metric:
    """Return the number of schedules by state."""
    found = GaugeMetricFamily("dispatcher_schedules", "Schedules by state.", labels=["state"])
    until_later = Q(paused_until=None) | Q(paused_until__gt=now)
    paused = Q(paused_from__lte=now) & until_later
    error = ~Q(error_code="")
    rows = Schedule.objects.all()
    found.add_metric(["error"], rows.filter(error).count())
    found.add_metric(["paused"], rows.filter(~error & paused).count())
    found.add_metric(["active"], rows.filter(~error, next_at__isnull=False).exclude(paused).count())
    found.add_metric(["ended"], rows.filter(~error, next_at=None).exclude(paused).count())
    return found
