"""Metrics of workflows; `jobs.api.metrics` collects them at each scrape."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate

from django.db.models import Count, F, Q
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from jobs.models import EndNotice
from jobs.reports import counters
from jobs.reports.counters import Name
from jobs.reports.rollups import BOUNDS_SECONDS
from workflows.domain.plan import NodeKind
from workflows.domain.states import RunState
from workflows.execution.counts import STEP_BOUNDS_SECONDS
from workflows.models import Run, Wait, follower_of, metric_label


def collect(now: datetime, *, name_tenants: bool) -> Iterator[Metric]:
    """Yield the metrics. name_tenants: False: workflows, whose names tenants choose, are summed up."""
    yield _runs(name_tenants)
    yield from _finished(name_tenants)
    nodes = CounterMetricFamily("dispatcher_nodes", "Ended nodes of runs.", labels=["kind", "outcome"])
    for kind, outcome, count in counters.read(Name.NODE_ENDS):
        nodes.add_metric([kind, outcome], count)
    yield nodes
    failures = CounterMetricFamily(
        "dispatcher_run_step_failures", "Steps of runs that raised.", labels=["error"]
    )
    for _, error, count in counters.read(Name.STEP_FAILURES):
        failures.add_metric([error], count)
    yield failures
    failing = Run.objects.filter(finished_at=None, failing_step=F("steps")).count()
    yield GaugeMetricFamily(
        "dispatcher_runs_failing", "Unfinished runs whose next step raises.", value=failing
    )
    waits = GaugeMetricFamily("dispatcher_waits_open", "Open waits of runs.", labels=["kind"])
    found = dict(
        Wait.objects.filter(answered_at=None).order_by().values_list("kind").annotate(Count("node_id"))
    )
    for kind in (NodeKind.HUMAN, NodeKind.SIGNAL, NodeKind.TIMER):
        waits.add_metric([kind.value], found.get(kind.value, 0))
    yield waits
    steps = HistogramMetricFamily("dispatcher_advance_seconds", "Time of a step that advances a run.")
    counts = Counter({int(code): count for _, code, count in counters.read(Name.ADVANCES)})
    steps.add_metric([], buckets(counts, STEP_BOUNDS_SECONDS), sum_value=None)
    yield steps
    unread = EndNotice.objects.filter(followed_by__startswith=follower_of(""))
    oldest = unread.order_by("at").values_list("at", flat=True).first()
    age = 0.0 if oldest is None else max(0.0, (now - oldest).total_seconds())
    yield GaugeMetricFamily(
        "dispatcher_end_notices_oldest_seconds", "Age of the oldest end that a run has not read.", value=age
    )


def _runs(name_tenants: bool) -> Metric:
    runs = GaugeMetricFamily("dispatcher_runs", "Unfinished runs.", labels=["workflow", "state"])
    live = Run.objects.filter(finished_at=None).order_by().values_list("version__workflow__name")
    counts: Counter[tuple[str, str]] = Counter()
    paused = Count("id", filter=Q(paused_at__isnull=False))
    for name, every, of_paused in live.annotate(every=Count("id"), of_paused=paused):
        shown = metric_label(name) if name_tenants else ""
        counts[shown, RunState.RUNNING.value] += every - of_paused
        counts[shown, "paused"] += of_paused
    for (name, state), count in sorted(counts.items()):
        runs.add_metric([name, state], count)
    return runs


def _finished(name_tenants: bool) -> Iterator[Metric]:
    finished = CounterMetricFamily(
        "dispatcher_runs_finished", "Runs that ended; one per round.", labels=["workflow", "state"]
    )
    ends: Counter[tuple[str, str]] = Counter()
    for name, state, count in counters.read(Name.RUN_ENDS):
        ends[name if name_tenants else "", state] += count
    for (name, state), count in sorted(ends.items()):
        finished.add_metric([name, state], count)
    yield finished
    seconds = HistogramMetricFamily(
        "dispatcher_workflow_run_seconds", "Time from a run's start to its end.", labels=["workflow"]
    )
    by_name: dict[str, Counter[int]] = defaultdict(Counter)
    for name, code, count in counters.read(Name.RUN_SECONDS):
        by_name[name if name_tenants else ""][int(code)] += count
    for name, counts in sorted(by_name.items()):
        seconds.add_metric([name], buckets(counts, BOUNDS_SECONDS), sum_value=None)
    yield seconds


def buckets(counts: Mapping[int, int], bounds: Sequence[float]) -> list[tuple[str, float]]:
    """Return the cumulated buckets of a histogram, by their upper bounds."""
    sums = accumulate(counts.get(place, 0) for place in range(len(bounds) + 1))
    return list(zip([*map(str, bounds), "+Inf"], sums, strict=True))
