"""The lease layer, pool by pool: the line, the slots, and whether they agree with the database."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from gpus.errors import LeasingUnavailable
from gpus.models import Server
from gpus.registry import queries
from jobs.models import Attempt
from jobs.ports import Ports

_LEASED = ("leased", "adoptable")


@dataclass(frozen=True, slots=True)
class PoolOf:
    """live_attempts: as the database knows them."""

    name: str
    fleet: str
    live_attempts: int


def pools(ports: Ports) -> list[PoolOf]:
    """Raises DatabaseError."""
    homes = dict(Server.objects.values_list("name", "pool_id"))
    live = Attempt.objects.filter(state__in=Attempt.LIVE).order_by().values_list("server", flat=True)
    running = Counter(homes.get(server, "") for server in live)
    return [
        PoolOf(pool.name, ports.registry.fleet_of(pool.name), running[pool.name]) for pool in queries.pools()
    ]


def collect(pools: list[PoolOf], ports: Ports) -> tuple[list[Metric], bool]:
    """What could be read, and whether Redis answered all that was asked."""
    waiting = GaugeMetricFamily("dispatcher_waiting", "Tickets in line.", labels=["pool", "model"])
    parked = GaugeMetricFamily(
        "dispatcher_parked",
        "Tickets of tenants that are paused or run as many jobs as they may, beside the line.",
        labels=["pool", "model"],
    )
    slots = GaugeMetricFamily("dispatcher_slots", "Slots, by state.", labels=["pool", "state"])
    pending = GaugeMetricFamily("dispatcher_wakes_pending", "Wakes sent and not yet used.", labels=["pool"])
    drift = GaugeMetricFamily(
        "dispatcher_lease_drift",
        "Live attempts in the database less leases in Redis; a few for moments are commits under way.",
        labels=["pool"],
    )
    whole = GaugeMetricFamily(
        "dispatcher_index_whole", "1 if the index is whole, 0 while it is rebuilt.", labels=["fleet"]
    )
    age = GaugeMetricFamily(
        "dispatcher_index_age_seconds", "Since the index was last rebuilt.", labels=["fleet"]
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
        pending.add_metric([pool.name], depth.wakes_pending)
        drift.add_metric([pool.name], pool.live_attempts - sum(depth.slots.get(s, 0) for s in _LEASED))
    return [waiting, parked, slots, pending, drift, whole, age], answers
