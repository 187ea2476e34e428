"""Sweeps, callbacks, refused results: what keeps the rest right."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from jobs import tallies
from jobs.models import Callback
from jobs.sweeps.ages import sweep_ages

MOST_CALLBACKS = 10_000
"""More pending ones are not counted out."""


def collect(now: datetime) -> Iterator[Metric]:
    yield from _sweeps(now)
    yield from _callbacks(now)
    refused = CounterMetricFamily(
        "dispatcher_results_refused",
        "Results of zombies: they came under an attempt or epoch that does not count any more.",
    )
    refused.add_metric([], sum(count for _, _, count in tallies.read(tallies.Name.RESULTS_REFUSED)))
    yield refused


def _sweeps(now: datetime) -> Iterator[Metric]:
    ages = GaugeMetricFamily(
        "dispatcher_sweep_age_seconds", "Since each sweep last ended; tick is beat's own.", labels=["sweep"]
    )
    repairs = CounterMetricFamily(
        "dispatcher_sweep_repairs", "What each sweep repaired, in its own unit.", labels=["sweep"]
    )
    for name, seconds in sorted(sweep_ages(now).items()):
        ages.add_metric([name], seconds)
    for _, name, count in tallies.read(tallies.Name.SWEEP_REPAIRS):
        repairs.add_metric([name], count)
    yield from (ages, repairs)


def _callbacks(now: datetime) -> Iterator[Metric]:
    pending = GaugeMetricFamily(
        "dispatcher_callbacks_pending", f"Callbacks to be sent, counted up to {MOST_CALLBACKS}."
    )
    overdue = GaugeMetricFamily(
        "dispatcher_callbacks_overdue_seconds", "How late the first of them is; 0 if none is."
    )
    rows = Callback.objects.filter(state=Callback.State.PENDING, next_at__isnull=False).order_by("next_at")
    first = rows.values_list("next_at", flat=True).first()
    pending.add_metric([], rows[:MOST_CALLBACKS].count())
    overdue.add_metric([], max(0.0, (now - first).total_seconds()) if first else 0.0)
    yield from (pending, overdue)
