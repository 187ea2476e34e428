"""/metrics in Prometheus' text format: counted when asked for, so that every process tells the same."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpus import queries as registry
from gpus.errors import LeasingUnavailable
from jobs.queries import counts_by_model_and_state
from jobs.services import ports as wiring
from jobs.sweeps import sweep_ages


def metrics(request: HttpRequest) -> HttpResponse:
    """What can't be read (Redis away) is left out; `dispatcher_up` says which part answered."""
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(DispatcherCollector())
    return HttpResponse(generate_latest(collectors), content_type=CONTENT_TYPE_LATEST)


class DispatcherCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("dispatcher_up", "1 if this part answered.", labels=["part"])
        try:
            found = [*_jobs(), *_sweeps()]
            pools = [(pool.name, registry.fleet_of(pool.name)) for pool in registry.pools()]
            up.add_metric(["database"], 1)
        except DatabaseError:
            found, pools = [], []
            up.add_metric(["database"], 0)
        try:
            found += _line(pools)
            up.add_metric(["redis"], 1)
        except LeasingUnavailable:
            up.add_metric(["redis"], 0)
        yield from (up, *found)


def _jobs() -> Iterator[Metric]:
    jobs = GaugeMetricFamily(
        "dispatcher_jobs", "Jobs in the database, by model and state.", labels=["model", "state"]
    )
    for model, state, count in counts_by_model_and_state():
        jobs.add_metric([model, state], count)
    yield jobs


def _line(pools: list[tuple[str, str]]) -> list[Metric]:
    waiting = GaugeMetricFamily("dispatcher_waiting", "Tickets in line.", labels=["pool", "model"])
    slots = GaugeMetricFamily("dispatcher_slots", "Slots, by state.", labels=["pool", "state"])
    pending = GaugeMetricFamily("dispatcher_wakes_pending", "Wakes sent and not yet used.", labels=["pool"])
    for pool, fleet in pools:
        depth = wiring.production_ports().leases(fleet).depth(pool)
        for model, count in depth.waiting.items():
            waiting.add_metric([pool, model], count)
        for state, count in depth.slots.items():
            slots.add_metric([pool, state], count)
        pending.add_metric([pool], depth.wakes_pending)
    return [waiting, slots, pending]


def _sweeps() -> list[Metric]:
    ages = GaugeMetricFamily("dispatcher_sweep_age_seconds", "Since each sweep last ran.", labels=["sweep"])
    for name, seconds in sorted(sweep_ages().items()):
        ages.add_metric([name], seconds)
    return [ages]
