"""Metrics of servers (from the registry), of queues and slots in Redis per pool, of the drift between Redis
and the database, and of the machines of pinned workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Min
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpus.errors import LeasingUnavailable
from gpus.health.circuits import all_circuits
from gpus.health.pinned_servers import read_heartbeats, recent_telemetry
from gpus.models import Pause, QuarantinedSlot, Server
from gpus.registry import queries
from jobs.models import Attempt
from jobs.ports import Ports
from jobs.reports.jobs import named


def collect_registry(now: datetime, *, name_tenants: bool) -> Iterator[Metric]:
    yield from _servers()
    yield from _quarantine(now)
    yield _pauses(name_tenants)


def _servers() -> Iterator[Metric]:
    slot_counts = GaugeMetricFamily(
        "dispatcher_server_slots", "Slots that the server should have.", labels=["server", "pool", "desired"]
    )
    healthy = GaugeMetricFamily(
        "dispatcher_server_healthy",
        "1: the last health probe was answered, also with 'no health endpoint'; 0: it was not.",
        labels=["server"],
    )
    rows = Server.objects.order_by("name").values_list("name", "pool_id", "desired", "slots", "healthy")
    for name, pool, desired, slots, is_healthy in rows:
        slot_counts.add_metric([name, pool, desired], slots)
        if is_healthy is not None:
            healthy.add_metric([name], int(is_healthy))
    yield from (slot_counts, healthy)


def _quarantine(now: datetime) -> Iterator[Metric]:
    slots = GaugeMetricFamily(
        "dispatcher_quarantined_slots",
        "Slots whose GPU may still be busy with a lost run.",
        labels=["server"],
    )
    oldest = GaugeMetricFamily(
        "dispatcher_quarantine_oldest_seconds", "Age of the oldest quarantine; 0 without one."
    )
    rows = QuarantinedSlot.objects.filter(freed_at=None).order_by()
    found = list(rows.values_list("server_id").annotate(Count("pk"), Min("since")))
    for server, count, _ in sorted(found):
        slots.add_metric([server], count)
    oldest.add_metric([], max(((now - since).total_seconds() for _, _, since in found), default=0.0))
    yield from (slots, oldest)


def circuits(ports: Ports) -> Metric:
    """Return the open circuits; those of fleets whose Redis is unavailable are missing."""
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
        "dispatcher_paused", "1 for each pause; that of the system has no name.", labels=["kind", "name"]
    )
    found = {
        (one.kind, name if name_tenants or one.kind != Pause.Kind.TENANT else "")
        for one, name in named(queries.pauses())
    }
    for labels in sorted(found):
        paused.add_metric(labels, 1)
    return paused


# -- the lease layer -----------------------------------------------------------------------------

_LEASED = ("leased", "adoptable")


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool in the database. live_attempts: number of live attempts on its servers."""

    name: str
    fleet: str
    live_attempts: int


def pools(ports: Ports) -> list[PoolRow]:
    """Return all pools. Raises DatabaseError."""
    pool_of = dict(Server.objects.values_list("name", "pool_id"))
    live = Attempt.objects.filter(state__in=Attempt.LIVE).order_by().values_list("server", flat=True)
    running = Counter(pool_of.get(server, "") for server in live)
    return [
        PoolRow(pool.name, ports.registry.fleet_of(pool.name), running[pool.name]) for pool in queries.pools()
    ]


def collect_queue(pools: list[PoolRow], ports: Ports) -> tuple[list[Metric], bool]:
    """Return the metrics in Redis that could be read, and True if Redis answered every call."""
    waiting = GaugeMetricFamily("dispatcher_waiting", "Tickets in the queue.", labels=["pool", "model"])
    parked = GaugeMetricFamily(
        "dispatcher_parked",
        "Tickets of tenants that are paused, at max_running or without quota; not in dispatcher_waiting.",
        labels=["pool", "model"],
    )
    slots = GaugeMetricFamily("dispatcher_slots", "Slots, by state.", labels=["pool", "state"])
    pending = GaugeMetricFamily("dispatcher_wakes_pending", "Wakes sent and not yet used.", labels=["pool"])
    drift = GaugeMetricFamily(
        "dispatcher_lease_drift",
        "Live attempts in the database minus leases in Redis; small values for a moment are "
        "commits in progress.",
        labels=["pool"],
    )
    placed = CounterMetricFamily(
        "dispatcher_near_leases",
        "Leases of jobs that preferred a server (`near`); from 0 again after a rebuild of the index.",
        labels=["pool", "outcome"],
    )
    whole = GaugeMetricFamily(
        "dispatcher_index_whole",
        "1 if the index in Redis is complete, 0 while it is being rebuilt.",
        labels=["fleet"],
    )
    age = GaugeMetricFamily(
        "dispatcher_index_age_seconds", "Seconds since the index was last rebuilt.", labels=["fleet"]
    )
    answers = True
    served: set[str] = set()
    for fleet in sorted({"main", *(pool.fleet for pool in pools)}):
        try:
            seconds = ports.leases(fleet).generation_age_seconds()
        except LeasingUnavailable:
            answers = False
            continue
        whole.add_metric([fleet], int(seconds is not None))
        if seconds is not None:
            age.add_metric([fleet], seconds)
            served.add(fleet)
    for pool in pools:
        if pool.fleet not in served:
            continue
        try:
            depth = ports.leases(pool.fleet).depth(pool.name)
        except LeasingUnavailable:
            answers = False
            served.discard(pool.fleet)
            continue
        for model, count in depth.waiting.items():
            waiting.add_metric([pool.name, model], count)
        for model, count in depth.parked.items():
            parked.add_metric([pool.name, model], count)
        for state, count in depth.slots.items():
            slots.add_metric([pool.name, state], count)
        for outcome, count in depth.placed.items():
            placed.add_metric([pool.name, outcome], count)
        pending.add_metric([pool.name], depth.wakes_pending)
        drift.add_metric([pool.name], pool.live_attempts - sum(depth.slots.get(s, 0) for s in _LEASED))
    return [waiting, parked, slots, pending, placed, drift, whole, age], answers


# -- machines -------------------------------------------------------------------------------------

_OF_GPU = {
    "utilisation": ("dispatcher_gpu_utilisation_percent", "Utilisation of the GPU."),
    "used_mb": ("dispatcher_gpu_memory_used_mb", "GPU memory in use by all processes."),
    "total_mb": ("dispatcher_gpu_memory_total_mb", "Total memory of the GPU."),
    "temperature": ("dispatcher_gpu_temperature_celsius", "Temperature of the GPU."),
    "power": ("dispatcher_gpu_power_watts", "Power draw of the GPU."),
    "ecc_errors": ("dispatcher_gpu_ecc_errors", "Uncorrected ECC errors since the driver was loaded."),
}
_OF_MACHINE = {
    "cpu_percent": ("dispatcher_machine_cpu_percent", "CPU utilisation of the machine."),
    "ram_used_mb": ("dispatcher_machine_memory_used_mb", "Main memory in use on the machine."),
    "models_ram_mb": ("dispatcher_models_memory_mb", "Main memory of the model process."),
}


def pinned() -> list[Server]:
    """Return all pinned servers. Raises DatabaseError."""
    return list(Server.objects.filter(host__isnull=False).select_related("pool").order_by("name"))


def collect_machines(servers: Sequence[Server], ports: Ports) -> list[Metric]:
    """Return the metrics from the heartbeats of pinned workers; servers whose Redis is unavailable are
    missing."""
    age = GaugeMetricFamily(
        "dispatcher_worker_heartbeat_age_seconds",
        "Seconds since the last heartbeat of a pinned server's worker.",
        labels=["server"],
    )
    warm = GaugeMetricFamily("dispatcher_warm_models", "1: the model is loaded.", labels=["server", "model"])
    processes = GaugeMetricFamily(
        "dispatcher_gpu_processes", "Processes that use GPU memory.", labels=["server"]
    )
    xids = GaugeMetricFamily(
        "dispatcher_gpu_xids",
        "Xid errors that the driver reported since the worker started.",
        labels=["server", "xid"],
    )
    gauges = {
        name: GaugeMetricFamily(name, text, labels=["server"])
        for name, text in (*_OF_GPU.values(), *_OF_MACHINE.values())
    }
    beats, _ = read_heartbeats(servers, ports.leases)
    for server, beat in sorted(beats.items()):
        age.add_metric([server], beat.age_seconds)
        found = recent_telemetry(beat)
        if found is None:
            continue
        for model in found.get("warm", ()):
            warm.add_metric([server, model], 1)
        _add(gauges, _OF_MACHINE, server, found)
        gpu = found.get("gpu") or {}
        _add(gauges, _OF_GPU, server, gpu)
        if gpu:
            processes.add_metric([server], len(gpu.get("processes", ())))
        for xid, times in gpu.get("xids", {}).items():
            xids.add_metric([server, xid], times)
    return [age, warm, processes, xids, *gauges.values()]


def _add(
    gauges: Mapping[str, GaugeMetricFamily],
    names: Mapping[str, tuple[str, str]],
    server: str,
    found: Mapping[str, Any],
) -> None:
    for field, (name, _) in names.items():
        if found.get(field) is not None:
            gauges[name].add_metric([server], found[field])
