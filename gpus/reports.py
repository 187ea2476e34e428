"""The fleet as operators see it: how each server really is, beside what is wanted of it, and its slots as
cells, each with its state and the reason."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from gpus.errors import LeasingUnavailable
from gpus.health.pinned_servers import recent_telemetry
from gpus.leasing.values import Heartbeat, SlotView
from gpus.models import Placement, QuarantinedSlot, Server
from gpus.protocol import CircuitState, DesiredState, slot_name, split_slot
from gpus.registry.index_sync import LeasesOf, read_paused

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


class CellState(StrEnum):
    FREE = "free"
    BUSY = "busy"
    RESTING = "resting"
    """Free, but its server said that it is busy, or failed again and again."""
    DRAINING = "draining"
    """Busy for the last time: its server drains, or has fewer slots by now."""
    QUARANTINED = "quarantined"
    OFF = "off"
    SICK = "sick"
    """Free, but its server does not answer."""
    UNKNOWN = "unknown"
    """Redis does not answer, or has not heard of the slot yet."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One slot. reason: a few words, empty where the state says it all. job_id, attempt_id, model: of what
    runs there, or is suspected to. age_seconds: since it was leased, or since the quarantine began.
    warm_models: what a job there finds loaded: what a worker says that holds models itself; of other
    servers what ran there last."""

    slot: str
    state: CellState
    reason: str = ""
    job_id: str | None = None
    attempt_id: str | None = None
    model: str | None = None
    age_seconds: float | None = None
    warm_models: tuple[str, ...] = ()

    @property
    def index(self) -> int:
        return split_slot(self.slot)[1]


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A server as it is wanted (desired, slots) and as it is found (observed, cells, healthy).

    observed: on, draining, off or unknown, see `Observed`. is_paused: with the whole system.
    healthy: None before the first answer. tells_health: False if it answers without a health endpoint.
    holds_lost_runs_seconds: how long a lost run may hold its slot there; 0 where the server tells.
    last_error: of the last look at its health. telemetry: what its worker measured last
    (`gpu_host.local.telemetry`); None for servers whose worker is not on their machine.
    """

    name: str
    pool: str
    fleet: str
    desired: DesiredState
    slots: int
    models: tuple[str, ...]
    host: str | None
    healthy: bool | None
    tells_health: bool | None
    checked_at: datetime | None
    last_error: str
    observed: str
    cells: tuple[Cell, ...]
    is_paused: bool = False
    holds_lost_runs_seconds: float = 0.0
    telemetry: Mapping[str, Any] | None = None

    @property
    def is_silent(self) -> bool:
        """Whether it answers and tells nothing of itself: a lost run there holds its slot."""
        return self.healthy is True and self.tells_health is False

    def count(self, *states: CellState) -> int:
        return sum(cell.state in states for cell in self.cells)

    @property
    def one_less(self) -> int:
        return max(0, self.slots - 1)

    @property
    def running(self) -> int:
        return sum(cell.state in (CellState.BUSY, CellState.DRAINING) for cell in self.cells)

    @property
    def is_settled(self) -> bool:
        """Whether it does what it was told; a pause of the whole system is no disobedience."""
        if self.desired is DesiredState.ON:
            return self.observed == "on" or self.is_paused
        return self.observed == "off"


@dataclass(frozen=True, slots=True)
class Fleet:
    """away: fleets (hash tags) whose Redis does not answer or is being rebuilt."""

    rows: tuple[ServerRow, ...]
    away: tuple[str, ...] = ()


def read_fleet(servers: Sequence[Server], leases: LeasesOf, now: datetime) -> Fleet:
    """servers: with pool and placements fetched. A question to Redis for each few of them, two to the
    database for all."""
    views: dict[str, SlotView] = {}
    away: list[str] = []
    by_fleet: dict[str, list[str]] = {}
    for server in servers:
        by_fleet.setdefault(server.pool.fleet, []).append(server.name)
    pinned = {server.name for server in servers if server.host}
    beats: dict[str, Heartbeat] = {}
    for fleet, names in sorted(by_fleet.items()):
        try:
            views |= {view.slot: view for view in leases(fleet).slots_of(names)}
            if here := pinned.intersection(names):
                beats |= leases(fleet).heartbeats(sorted(here))
        except LeasingUnavailable:
            away.append(fleet)
    longest = _longest_runs([server for server in servers if server.tells_health is False])
    suspects = {
        slot_name(row.server_id, row.slot): row
        for row in QuarantinedSlot.objects.filter(server__in=[s.name for s in servers], freed_at=None)
    }
    known: dict[str, set[str]] = defaultdict(set)
    for slot in [*views, *suspects]:
        known[split_slot(slot)[0]].add(slot)
    is_paused = read_paused().system
    rows = []
    for server in servers:
        slots = known[server.name] | {slot_name(server.name, index) for index in range(server.slots)}
        cells = [
            cell_of(slot, views.get(slot), suspects.get(slot), server, now, is_paused=is_paused)
            for slot in sorted(slots, key=lambda slot: split_slot(slot)[1])
        ]
        seen = [views[slot] for slot in slots if slot in views]
        state = "unknown" if server.pool.fleet in away else observed(server, seen).state
        row = _row(server, state, cells, is_paused=is_paused)
        if server.name in longest:
            row = replace(row, holds_lost_runs_seconds=longest[server.name])
        rows.append(_measured(row, beats.get(server.name)) if server.host else row)
    return Fleet(tuple(rows), tuple(away))


def _row(server: Server, state: str, cells: Sequence[Cell], *, is_paused: bool) -> ServerRow:
    spec = server.spec()
    return ServerRow(
        name=server.name,
        pool=server.pool_id,
        fleet=server.pool.fleet,
        desired=spec.desired,
        slots=server.slots,
        models=spec.models,
        host=server.host,
        healthy=server.healthy,
        tells_health=server.tells_health,
        checked_at=server.checked_at,
        last_error=server.last_error,
        observed=state,
        cells=tuple(cell for cell in cells if cell.index < server.slots or cell.state is not CellState.OFF),
        is_paused=is_paused,
    )


def _longest_runs(servers: Sequence[Server]) -> dict[str, float]:
    """Seconds that a run may last there, by server."""
    if not servers:
        return {}
    found: dict[str, float] = {}
    for one in Placement.objects.filter(server__in=servers).select_related("model"):
        found[one.server_id] = max(found.get(one.server_id, 0.0), one.model.spec.run_limit_seconds)
    return found


def _measured(row: ServerRow, beat: Heartbeat | None) -> ServerRow:
    """With what its worker said, while that is what is."""
    telemetry = recent_telemetry(beat) if beat is not None else None
    loaded = tuple((telemetry or {}).get("warm", ()))
    cells = tuple(replace(cell, warm_models=loaded) for cell in row.cells)
    return replace(row, telemetry=telemetry, cells=cells)


def cell_of(
    slot: str,
    view: SlotView | None,
    suspect: QuarantinedSlot | None,
    server: Server,
    now: datetime,
    *,
    is_paused: bool = False,
) -> Cell:
    """view: None if Redis said nothing of this slot. suspect: its open quarantine, which is the database's:
    it counts either way."""
    warm = (view.warm_model,) if view and view.warm_model else ()
    if suspect is not None and (view is None or view.state not in ("leased", "settling")):
        return Cell(
            slot,
            CellState.QUARANTINED,
            suspect.reason.replace("_", " "),
            suspect.job_id or None,
            suspect.attempt_id or None,
            suspect.model or None,
            max(0.0, (now - suspect.since).total_seconds()),
            warm,
        )
    if view is None:
        return Cell(slot, CellState.UNKNOWN, "Redis says nothing of it")
    if view.state in ("leased", "adoptable", "settling"):
        state, reason = _running_state(view, server)
        return Cell(
            slot, state, reason, view.job_id, view.attempt_id, view.model, max(0.0, view.held_seconds), warm
        )
    state, reason = _idle_state(view, server, is_paused=is_paused)
    return Cell(slot, state, reason, warm_models=warm)


def _running_state(view: SlotView, server: Server) -> tuple[CellState, str]:
    waits = {"adoptable": "waits for a worker to go on with it", "settling": "its end is being written"}
    if server.desired == DesiredState.OFF:
        return CellState.DRAINING, "is being interrupted"
    if server.desired == DesiredState.DRAINING:
        return CellState.DRAINING, waits.get(view.state, "ends, then nothing starts")
    if split_slot(view.slot)[1] >= server.slots:
        return CellState.DRAINING, "ends, then the slot goes"
    return CellState.BUSY, waits.get(view.state, "")


def _idle_state(view: SlotView, server: Server, *, is_paused: bool) -> tuple[CellState, str]:
    if view.state == "quarantined":
        return CellState.QUARANTINED, "nobody vouches for it"
    if server.host and server.healthy is False and server.desired == DesiredState.ON:
        return CellState.SICK, server.last_error or "its worker is gone"
    if view.state == "off":
        if server.desired != DesiredState.ON:
            return CellState.OFF, "drained" if server.desired == DesiredState.DRAINING else "switched off"
        return CellState.OFF, "the system is paused" if is_paused else "one above the count still runs"
    if server.desired != DesiredState.ON:
        return CellState.FREE, f"not {server.desired} yet"
    if server.healthy is False:
        return CellState.SICK, server.last_error or "does not answer"
    if view.circuit is CircuitState.OPEN:
        return CellState.RESTING, "its server failed again and again: the circuit is open"
    if view.circuit is CircuitState.HALF_OPEN:
        return CellState.RESTING, "its server failed again and again: one job tries it"
    if view.resting:
        return CellState.RESTING, "its server said it is busy"
    return CellState.FREE, ""
