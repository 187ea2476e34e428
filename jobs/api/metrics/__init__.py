"""The view of /metrics in Prometheus' text format; `work`, `fleet` and the functions that
`settings.DISPATCHER_METRICS` names yield the metrics, docs/reference/metrics.md lists them.

Values are computed at each scrape, so that all processes report the same; events without a row are counted in
`jobs.reports.counters`. Finished jobs are never counted row by row, so a scrape costs the same at a million
jobs. If the database or Redis is unavailable, its metrics are missing and `dispatcher_up` is 0.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator

from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponse
from django.utils.module_loading import import_string
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import jobs.ports
from foundation.http_api.problems import Problem
from gpus.models import Server
from jobs.api.errors import answer
from jobs.api.metrics import fleet, work

OPEN_METRICS = "open"
"""Value of DISPATCHER_METRICS_TOKEN for metrics without a token."""
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="dispatcher metrics"'}
SET_A_TOKEN = (
    "set DISPATCHER_METRICS_TOKEN to a long random text, or to `open` if only Prometheus can reach /metrics"
)
_NO_TOKEN = f"DISPATCHER_METRICS_TOKEN is not set. For operators: {SET_A_TOKEN}."


def metrics(request: HttpRequest) -> HttpResponse:
    refusal = _refusal(request)
    if refusal is not None:
        return answer(refusal)
    collectors = CollectorRegistry(auto_describe=False)
    # without a token, names of tenants are not shown
    is_open = settings.DISPATCHER.metrics_token == OPEN_METRICS
    collectors.register(DispatcherCollector(name_tenants=not is_open))
    return HttpResponse(generate_latest(collectors), content_type=CONTENT_TYPE_LATEST)


def _refusal(request: HttpRequest) -> Problem | None:
    """Return the problem of a missing or wrong token; None if the request may read the metrics."""
    token: str = settings.DISPATCHER.metrics_token
    if token == OPEN_METRICS:
        return None
    scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
    if not token:
        return Problem(401, "not_authenticated", _NO_TOKEN, headers=_CHALLENGE)
    if not scheme:
        detail = "Send `Authorization: Bearer <token>` with the token of DISPATCHER_METRICS_TOKEN."
        return Problem(401, "not_authenticated", detail, headers=_CHALLENGE)
    # in constant time, so that the duration does not reveal a correct prefix
    is_right = hmac.compare_digest(sent.strip().encode(), token.encode())
    if scheme.lower() == "bearer" and is_right:
        return None
    return Problem(
        401, "invalid_key", "The token is not that of DISPATCHER_METRICS_TOKEN.", headers=_CHALLENGE
    )


class DispatcherCollector(Collector):
    """Collects all metrics at a scrape. name_tenants: if False, values by tenant are summed up."""

    def __init__(self, *, name_tenants: bool) -> None:
        self._name_tenants = name_tenants

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("dispatcher_up", "1 if this part answered.", labels=["part"])
        ports = jobs.ports.production_ports()
        now = ports.clock.now()
        found: list[Metric] = []
        pools: list[fleet.PoolRow] = []
        pinned: list[Server] = []
        try:
            found = [
                *work.collect_jobs(now, ports, name_tenants=self._name_tenants),
                *fleet.collect_registry(now, name_tenants=self._name_tenants),
                *work.collect_upkeep(now),
                fleet.circuits(ports),
            ]
            for path in settings.DISPATCHER_METRICS:
                found += import_string(path)(now, name_tenants=self._name_tenants)
            pools, pinned = fleet.pools(ports), fleet.pinned()
            up.add_metric(["database"], 1)
        except (DatabaseError, InterfaceError):
            found = []
            up.add_metric(["database"], 0)
        in_redis, redis_answers = fleet.collect_queue(pools, ports)
        up.add_metric(["redis"], int(redis_answers))
        yield from (up, *found, *in_redis, *fleet.collect_machines(pinned, ports))
