"""Metrics of jobs (unfinished ones counted through an index, finished ones from the rollups), sweeps,
callbacks, and refused results and requests."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import accumulate

from django.db.models import Q
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from jobs.callbacks.pick import delivery_report
from jobs.domain.access import Principal
from jobs.models import ACTIONABLE, CLIENT_ERROR, DEAD_LETTER, Callback, Job, Rollup, Tenant
from jobs.ports import Ports
from jobs.reports import counters
from jobs.reports.jobs import UNFINISHED, waiting_by_model_and_tenant
from jobs.reports.rollups import BOUNDS_SECONDS, EVER, Sums
from jobs.sweeps.base import sweep_ages
from jobs.sweeps.registry import Sweeps

MAX_DEAD_LETTERS = 10_000
"""Only so many, the newest, are counted."""
_OPERATOR = Principal(None, is_operator=True, name="metrics")
_FINAL = ("completed", "failed", "cancelled")


def collect_jobs(now: datetime, ports: Ports, *, name_tenants: bool) -> Iterator[Metric]:
    yield from _unfinished(now, ports)
    yield from _finished(name_tenants)
    yield _attempts()
    yield _dead_letters()
    yield _client_errors()


def _unfinished(now: datetime, ports: Ports) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("dispatcher_jobs", "Unfinished jobs, by state.", labels=["model", "state"])
    oldest = GaugeMetricFamily(
        "dispatcher_oldest_waiting_seconds", "Waiting time of the oldest queued job.", labels=["model"]
    )
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[str, datetime] = {}
    for line in waiting_by_model_and_tenant(_OPERATOR, ports.waiting_of_all):
        for one in UNFINISHED:
            counts[line.model, one.value] += getattr(line, one.value)
        if line.oldest_queued_at is not None:
            first[line.model] = min(line.oldest_queued_at, first.get(line.model, line.oldest_queued_at))
    for (model, state), count in sorted(counts.items()):
        jobs.add_metric([model, state], count)
    for model, at in sorted(first.items()):
        oldest.add_metric([model], max(0.0, (now - at).total_seconds()))
    yield from (jobs, oldest)


def _finished(name_tenants: bool) -> Iterator[Metric]:
    finished = CounterMetricFamily(
        "dispatcher_jobs_finished",
        "Jobs that ended; one per round of a retried job.",
        labels=["model", "state"],
    )
    held = CounterMetricFamily(
        "dispatcher_gpu_seconds", "Time for which ended runs held their slots.", labels=["model", "tenant"]
    )
    waits = HistogramMetricFamily(
        "dispatcher_wait_seconds", "Time from submit to the first start.", labels=["model"]
    )
    runs = HistogramMetricFamily(
        "dispatcher_run_seconds", "Time from the first start to the end.", labels=["model"]
    )
    tenants = dict(Tenant.objects.values_list("pk", "name")) if name_tenants else {}
    totals: dict[str, Sums] = defaultdict(Sums)
    seconds: Counter[tuple[str, str]] = Counter()
    rows = Rollup.objects.filter(span_seconds=EVER).order_by("model", "tenant_id")
    fields = ("model", "tenant_id", *_FINAL, "gpu_seconds", "waits", "runs")
    for model, tenant, *values in rows.values_list(*fields):
        one = Sums(*values)
        totals[model].add(one)
        seconds[model, tenants.get(tenant, "")] += one.gpu_seconds  # type: ignore[assignment]
    for labels, value in seconds.items():
        held.add_metric(labels, value)
    for model, total in totals.items():
        for state in _FINAL:
            finished.add_metric([model, state], getattr(total, state))
        waits.add_metric([model], _buckets(total.waits), sum_value=None)
        runs.add_metric([model], _buckets(total.runs), sum_value=None)
    yield from (finished, held, waits, runs)


def _buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return cumulative buckets for Prometheus. The sum of the values is not stored."""
    counts = counts or [0] * (len(BOUNDS_SECONDS) + 1)
    return list(zip([*map(str, BOUNDS_SECONDS), "+Inf"], accumulate(counts), strict=True))


def _attempts() -> Metric:
    attempts = CounterMetricFamily(
        "dispatcher_attempts",
        "Ended attempts, by outcome (completed, or the class of the error) and by what followed for the job.",
        labels=["model", "outcome", "then"],
    )
    for model, code, count in counters.read(counters.Name.ATTEMPT_ENDS):
        outcome, _, then = code.partition("/")
        attempts.add_metric([model, outcome, then], count)
    return attempts


def _dead_letters() -> Metric:
    return _failed_jobs(
        "dispatcher_dead_letters",
        "Failed jobs that were not retried or dismissed, without client errors; "
        f"the newest {MAX_DEAD_LETTERS} are counted.",
        ACTIONABLE,
    )


def _client_errors() -> Metric:
    return _failed_jobs(
        "dispatcher_client_errors",
        "Failed jobs whose input was rejected, not retried or dismissed; "
        f"the newest {MAX_DEAD_LETTERS} are counted.",
        DEAD_LETTER & CLIENT_ERROR,
    )


def _failed_jobs(name: str, text: str, condition: Q) -> Metric:
    letters = GaugeMetricFamily(name, text, labels=["model", "error"])
    rows = Job.objects.filter(condition).order_by("-finished_at")
    counts = Counter(rows.values_list("model", "error_code")[:MAX_DEAD_LETTERS])
    for (model, error), count in sorted(counts.items()):
        letters.add_metric([model, error], count)
    return letters


# -- upkeep -------------------------------------------------------------------------------------

MAX_CALLBACKS = 10_000
"""Only so many pending callbacks are counted."""
_COUNTED_BY_CODE = (
    (
        "dispatcher_requests_refused",
        "Requests refused with 429 or 503, by code.",
        "code",
        counters.Name.REQUESTS_REFUSED,
    ),
    (
        "dispatcher_web_connections_ended",
        "Connections closed by the web server, by reason.",
        "reason",
        counters.Name.WEB_ENDED,
    ),
    (
        "dispatcher_pushes_refused",
        "Refused pushes of GPU servers, by code.",
        "code",
        counters.Name.PUSHES_REFUSED,
    ),
    (
        "dispatcher_sign_ins_refused",
        "Sign-ins to the admin refused before the password check, by the exceeded limit.",
        "limit",
        counters.Name.SIGN_INS_REFUSED,
    ),
)


def collect_upkeep(now: datetime) -> Iterator[Metric]:
    yield from _sweeps(now)
    yield from _callbacks(now)
    refused = CounterMetricFamily(
        "dispatcher_results_refused",
        "Results refused because their attempt or epoch is no longer current (zombie workers).",
    )
    refused.add_metric([], sum(count for _, _, count in counters.read(counters.Name.RESULTS_REFUSED)))
    yield refused
    for metric, text, label, name in _COUNTED_BY_CODE:
        counted = CounterMetricFamily(metric, text, labels=[label])
        for _, code, count in sorted(counters.read(name)):
            counted.add_metric([code], count)
        yield counted


def _sweeps(now: datetime) -> Iterator[Metric]:
    ages = GaugeMetricFamily(
        "dispatcher_sweep_age_seconds",
        "Seconds since each sweep last completed; `tick` is the last tick of beat.",
        labels=["sweep"],
    )
    periods = GaugeMetricFamily(
        "dispatcher_sweep_period_seconds", "How often each sweep runs.", labels=["sweep"]
    )
    repairs = CounterMetricFamily(
        "dispatcher_sweep_repairs", "Repairs of each sweep, in its own unit.", labels=["sweep"]
    )
    for name, seconds in sorted(sweep_ages(now).items()):
        ages.add_metric([name], seconds)
    for name, entry in sorted(Sweeps().entries().items()):
        periods.add_metric([name], entry.period_seconds)
    for _, name, count in counters.read(counters.Name.SWEEP_REPAIRS):
        repairs.add_metric([name], count)
    yield from (ages, periods, repairs)


def _callbacks(now: datetime) -> Iterator[Metric]:
    pending = GaugeMetricFamily(
        "dispatcher_callbacks_pending", f"Callbacks to be sent, counted up to {MAX_CALLBACKS}."
    )
    rows = Callback.objects.filter(state=Callback.State.PENDING, next_at__isnull=False)
    pending.add_metric([], rows[:MAX_CALLBACKS].count())
    yield pending
    report = delivery_report(now)
    for name, what, number in (
        ("in_flight", "Callbacks that are being sent.", report.in_flight),
        ("due", "Callbacks that can be sent now.", report.due),
        ("held", "Due callbacks held by the open circuit of their receiver.", report.held),
        ("overdue_seconds", "How late the oldest sendable callback is; 0: none.", report.oldest_due_seconds),
        ("circuits_open", "Receivers with an open circuit: one try at a time.", report.open_circuits),
    ):
        gauge = GaugeMetricFamily(f"dispatcher_callbacks_{name}", what)
        gauge.add_metric([], number)
        yield gauge
