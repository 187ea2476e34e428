"""Servers as the registry knows them: wanted, healthy, held back, paused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.db.models import Count, Min
from prometheus_client.core import GaugeMetricFamily, Metric

from gpus.health.circuits import all_circuits
from gpus.models import Pause, QuarantinedSlot, Server
from gpus.registry import queries
from jobs.ports import Ports
from jobs.reports.jobs import named


def collect(now: datetime, *, name_tenants: bool) -> Iterator[Metric]:
    yield from _servers()
    yield from _quarantine(now)
    yield _pauses(name_tenants)


def _servers() -> Iterator[Metric]:
    wanted = GaugeMetricFamily(
        "dispatcher_server_slots", "Slots that the server is to have.", labels=["server", "pool", "desired"]
    )
    healthy = GaugeMetricFamily(
        "dispatcher_server_healthy",
        "1: answered its last health question, or answered that it has no health endpoint; 0: neither.",
        labels=["server"],
    )
    rows = Server.objects.order_by("name").values_list("name", "pool_id", "desired", "slots", "healthy")
    for name, pool, desired, slots, is_healthy in rows:
        wanted.add_metric([name, pool, desired], slots)
        if is_healthy is not None:
            healthy.add_metric([name], int(is_healthy))
    yield from (wanted, healthy)


def _quarantine(now: datetime) -> Iterator[Metric]:
    slots = GaugeMetricFamily(
        "dispatcher_quarantined_slots",
        "Slots whose GPU may still be busy with a lost run.",
        labels=["server"],
    )
    oldest = GaugeMetricFamily(
        "dispatcher_quarantine_oldest_seconds", "Since the longest of them began; 0 without one."
    )
    rows = QuarantinedSlot.objects.filter(freed_at=None).order_by()
    found = list(rows.values_list("server_id").annotate(Count("pk"), Min("since")))
    for server, count, _ in sorted(found):
        slots.add_metric([server], count)
    oldest.add_metric([], max(((now - since).total_seconds() for _, _, since in found), default=0.0))
    yield from (slots, oldest)


def circuits(ports: Ports) -> Metric:
    """Of what Redis tells; what it does not tell is missing."""
    found = GaugeMetricFamily(
        "dispatcher_circuit_open",
        "1 for each server and model whose circuit is open or half open.",
        labels=["kind", "name", "state"],
    )
    for one in all_circuits(ports.leases).open:
        found.add_metric([one.kind.value, one.name, one.circuit.state.value], 1)
    return found


def _pauses(name_tenants: bool) -> Metric:
    paused = GaugeMetricFamily(
        "dispatcher_paused", "1 for what is paused; system has no name.", labels=["kind", "name"]
    )
    found = {
        (one.kind, name if name_tenants or one.kind != Pause.Kind.TENANT else "")
        for one, name in named(queries.pauses())
    }
    for labels in sorted(found):
        paused.add_metric(labels, 1)
    return paused
