"""How a server really is, beside what the operator wants of it: read from its slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpus.errors import LeasingUnavailable
from gpus.leasing.values import SlotView
from gpus.models import Server
from gpus.protocol import CircuitState, DesiredState, split_slot
from gpus.registry.index_sync import LeasesOf

_RUNNING = ("leased", "adoptable", "settling")


@dataclass(frozen=True, slots=True)
class Observed:
    """state: on (gives out slots, or has none left), draining (starts nothing, something runs), off (nothing
    runs), unknown (Redis does not answer). slots: count by state; resting: free ones of a server that said it
    is busy; running: those with a job. circuit: its breaker."""

    state: str
    slots: Mapping[str, int]
    resting: int
    running: int
    circuit: CircuitState = CircuitState.CLOSED


def observe(servers: Iterable[Server], leases: LeasesOf) -> dict[str, Observed]:
    """By name. One question to each fleet's Redis, however many they are. Reads the pools: select them."""
    by_fleet: dict[str, list[Server]] = {}
    for server in servers:
        by_fleet.setdefault(server.pool.fleet, []).append(server)
    found: dict[str, Observed] = {}
    for fleet, rows in by_fleet.items():
        views: dict[str, list[SlotView]] = {row.name: [] for row in rows}
        try:
            for view in leases(fleet).slots_of(list(views)):
                views[split_slot(view.slot)[0]].append(view)
        except LeasingUnavailable:
            found |= {row.name: Observed("unknown", {}, 0, 0) for row in rows}
        else:
            found |= {row.name: observed(row, views[row.name]) for row in rows}
    return found


def observed(server: Server, views: Sequence[SlotView]) -> Observed:
    """views: of all its slots."""
    slots = Counter(view.state for view in views)
    running = sum(slots[state] for state in _RUNNING)
    resting = sum(view.resting for view in views if view.state == "free")
    circuit = views[0].circuit if views else CircuitState.CLOSED
    return Observed(_state(server, slots, running), dict(slots), resting, running, circuit)


def _state(server: Server, slots: Counter[str], running: int) -> str:
    """A slot is held back although the count has room for it: the server starts nothing, whatever is wanted
    (the system is paused, or the switch is not there yet)."""
    held_back = slots["off"] > 0 and slots.total() - slots["off"] < server.slots
    if slots["free"] or (server.desired == DesiredState.ON and not held_back):
        return "on"
    return "draining" if running else "off"
