"""/metrics in Prometheus' text format; every name is in docs/reference/metrics.md. Here is the view; `work`
and `fleet` yield the metrics.

Counted when asked for, so that every process tells the same; what no row holds is in `jobs.reports.counters`.
No count goes over what is finished: a scrape costs the same at a million jobs. A part that can't be read is
left out, and `dispatcher_up` says so.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator

from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import jobs.ports
from foundation.http_api.problems import Problem
from gpus.models import Server
from jobs.api.errors import answer
from jobs.api.metrics import fleet, work

OPEN_METRICS = "open"
"""The token that says: asks for none."""
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="dispatcher metrics"'}
SET_A_TOKEN = "give DISPATCHER_METRICS_TOKEN a long random text, or `open` where only Prometheus gets there"
_NO_TOKEN = f"DISPATCHER_METRICS_TOKEN is not set. For operators: {SET_A_TOKEN}."


def metrics(request: HttpRequest) -> HttpResponse:
    refusal = _refusal(request)
    if refusal is not None:
        return answer(refusal)
    collectors = CollectorRegistry(auto_describe=False)
    # tenants are named only to a reader that has sent the token
    is_open = settings.DISPATCHER.metrics_token == OPEN_METRICS
    collectors.register(DispatcherCollector(name_tenants=not is_open))
    return HttpResponse(generate_latest(collectors), content_type=CONTENT_TYPE_LATEST)


def _refusal(request: HttpRequest) -> Problem | None:
    """None: no token is asked for, or this is it."""
    wanted: str = settings.DISPATCHER.metrics_token
    if wanted == OPEN_METRICS:
        return None
    scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
    if not wanted:
        return Problem(401, "not_authenticated", _NO_TOKEN, headers=_CHALLENGE)
    if not scheme:
        return Problem(401, "not_authenticated", "Send `Authorization: Bearer <token>`.", headers=_CHALLENGE)
    # in constant time: how long it takes must not tell how much of it is right
    is_right = hmac.compare_digest(sent.strip().encode(), wanted.encode())
    if scheme.lower() == "bearer" and is_right:
        return None
    return Problem(401, "invalid_key", "This is not the token for the metrics.", headers=_CHALLENGE)


class DispatcherCollector(Collector):
    """name_tenants: else what is counted by tenant is summed up."""

    def __init__(self, *, name_tenants: bool) -> None:
        self._name_tenants = name_tenants

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("dispatcher_up", "1 if this part answered.", labels=["part"])
        ports = jobs.ports.production_ports()
        now = ports.clock.now()
        found: list[Metric] = []
        pools: list[fleet.PoolOf] = []
        pinned: list[Server] = []
        try:
            found = [
                *work.collect_jobs(now, ports, name_tenants=self._name_tenants),
                *fleet.collect_registry(now, name_tenants=self._name_tenants),
                *work.collect_upkeep(now),
                fleet.circuits(ports),
            ]
            pools, pinned = fleet.pools(ports), fleet.pinned()
            up.add_metric(["database"], 1)
        except (DatabaseError, InterfaceError):
            found = []
            up.add_metric(["database"], 0)
        told, redis_answers = fleet.collect_line(pools, ports)
        up.add_metric(["redis"], int(redis_answers))
        yield from (up, *found, *told, *fleet.collect_machines(pinned, ports))
