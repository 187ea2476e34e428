"""The view, and which part tells what. A part that can't be read is left out, and `dispatcher_up` says so."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpus.models import Server
from jobs.api.metrics import fleet, line, machines, upkeep, work
from jobs.services import ports as wiring


def metrics(request: HttpRequest) -> HttpResponse:
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(DispatcherCollector())
    return HttpResponse(generate_latest(collectors), content_type=CONTENT_TYPE_LATEST)


class DispatcherCollector(Collector):
    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("dispatcher_up", "1 if this part answered.", labels=["part"])
        ports = wiring.production_ports()
        now = ports.clock.now()
        found: list[Metric] = []
        pools: list[line.PoolOf] = []
        pinned: list[Server] = []
        try:
            found = [*work.collect(now), *fleet.collect(now), *upkeep.collect(now), fleet.circuits(ports)]
            pools, pinned = line.pools(), machines.pinned()
            up.add_metric(["database"], 1)
        except (DatabaseError, InterfaceError):
            found = []
            up.add_metric(["database"], 0)
        told, redis_answers = line.collect(pools, ports)
        up.add_metric(["redis"], int(redis_answers))
        yield from (up, *found, *told, *machines.collect(pinned, ports))
