"""How a server really is, beside what the operator wants of it: read from its slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpus.errors import LeasingUnavailable
from gpus.leasing.values import SlotView
from gpus.models import Server
from gpus.protocol import CircuitState, DesiredState

from .mirror import LeasesOf

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


def observe(server: Server, leases: LeasesOf) -> Observed:
    """One question to Redis. Reads the pool: select it in loops."""
    try:
        views = leases(server.pool.fleet).slots(server.name)
    except LeasingUnavailable:
        return Observed("unknown", {}, 0, 0)
    return observed(server, views)


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
