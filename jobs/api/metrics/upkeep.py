"""Sweeps, callbacks, refused results: what keeps the rest right."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from jobs.callbacks.pick import delivery_report
from jobs.models import Callback
from jobs.reports import counters
from jobs.sweeps.base import sweep_ages

MOST_CALLBACKS = 10_000
"""More pending ones are not counted out."""


def collect(now: datetime) -> Iterator[Metric]:
    yield from _sweeps(now)
    yield from _callbacks(now)
    refused = CounterMetricFamily(
        "dispatcher_results_refused",
        "Results of zombies: they came under an attempt or epoch that does not count any more.",
    )
    refused.add_metric([], sum(count for _, _, count in counters.read(counters.Name.RESULTS_REFUSED)))
    yield refused
    turned_away = CounterMetricFamily(
        "dispatcher_requests_refused", "Requests that were told to come again: 429 and 503.", labels=["code"]
    )
    for _, code, count in counters.read(counters.Name.REQUESTS_REFUSED):
        turned_away.add_metric([code], count)
    yield turned_away
    ended = CounterMetricFamily(
        "dispatcher_web_connections_ended", "Connections that the web server ended.", labels=["reason"]
    )
    for _, reason, count in counters.read(counters.Name.WEB_ENDED):
        ended.add_metric([reason], count)
    yield ended
    pushes = CounterMetricFamily(
        "dispatcher_pushes_refused",
        "Pushes of GPU servers that were not read, by the refusal's code.",
        labels=["code"],
    )
    for _, code, count in sorted(counters.read(counters.Name.PUSHES_REFUSED)):
        pushes.add_metric([code], count)
    yield pushes
    sign_ins = CounterMetricFamily(
        "dispatcher_sign_ins_refused",
        "Sign-ins to the admin refused before the password was checked, by the limit that refused.",
        labels=["limit"],
    )
    for _, limit, count in counters.read(counters.Name.SIGN_INS_REFUSED):
        sign_ins.add_metric([limit], count)
    yield sign_ins


def _sweeps(now: datetime) -> Iterator[Metric]:
    ages = GaugeMetricFamily(
        "dispatcher_sweep_age_seconds", "Since each sweep last ended; tick is beat's own.", labels=["sweep"]
    )
    repairs = CounterMetricFamily(
        "dispatcher_sweep_repairs", "What each sweep repaired, in its own unit.", labels=["sweep"]
    )
    for name, seconds in sorted(sweep_ages(now).items()):
        ages.add_metric([name], seconds)
    for _, name, count in counters.read(counters.Name.SWEEP_REPAIRS):
        repairs.add_metric([name], count)
    yield from (ages, repairs)


def _callbacks(now: datetime) -> Iterator[Metric]:
    pending = GaugeMetricFamily(
        "dispatcher_callbacks_pending", f"Callbacks to be sent, counted up to {MOST_CALLBACKS}."
    )
    rows = Callback.objects.filter(state=Callback.State.PENDING, next_at__isnull=False)
    pending.add_metric([], rows[:MOST_CALLBACKS].count())
    yield pending
    report = delivery_report(now)
    for name, what, number in (
        ("in_flight", "Callbacks that are being sent.", report.in_flight),
        ("due", "Callbacks that may be sent now.", report.due),
        ("held", "Callbacks that are due, behind the open circuit of their receiver.", report.held),
        ("overdue_seconds", "How late the first that may be sent is; 0: none.", report.oldest_due_seconds),
        ("circuits_open", "Receivers that did not answer: one try at a time.", report.open_circuits),
    ):
        gauge = GaugeMetricFamily(f"dispatcher_callbacks_{name}", what)
        gauge.add_metric([], number)
        yield gauge
