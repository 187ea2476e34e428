"""Reports on the fleet for operators: desired and actual state of each server, and a cell per slot with a
reason."""

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
    """The actual state of a server.

    state: on (takes jobs, or has no free slot), draining (starts no job, some still run), off (no job runs),
    unknown (Redis does not answer). slots: count by state. resting: free slots of a server that answered that
    it is busy. running: slots with a job. circuit: state of its circuit breaker.
    """

    state: str
    slots: Mapping[str, int]
    resting: int
    running: int
    circuit: CircuitState = CircuitState.CLOSED


def observe(servers: Iterable[Server], leases: LeasesOf) -> dict[str, Observed]:
    """The actual state by server name, with one call per fleet. servers: with pools selected."""
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
    """The actual state of a server from the views of all its slots."""
    slots = Counter(view.state for view in views)
    running = sum(slots[state] for state in _RUNNING)
    resting = sum(view.resting for view in views if view.state == "free")
    circuit = views[0].circuit if views else CircuitState.CLOSED
    return Observed(_state(server, slots, running), dict(slots), resting, running, circuit)


def _state(server: Server, slots: Counter[str], running: int) -> str:
    """A closed slot below the count means that the server starts no job, in any desired state: the
    system is paused, or the lease layer is not up to date."""
    is_closed = slots["off"] > 0 and slots.total() - slots["off"] < server.slots
    if slots["free"] or (server.desired == DesiredState.ON and not is_closed):
        return "on"
    return "draining" if running else "off"


class CellState(StrEnum):
    """State of a slot in reports."""

    FREE = "free"
    BUSY = "busy"
    RESTING = "resting"
    """Free, but its server answered that it is busy, or its circuit is not closed."""
    DRAINING = "draining"
    """Busy with its last job: its server is draining, or has fewer slots now."""
    QUARANTINED = "quarantined"
    OFF = "off"
    SICK = "sick"
    """Free, but its server does not answer."""
    UNKNOWN = "unknown"
    """Redis does not answer, or does not have the slot yet."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One slot in a report.

    reason: a few words, or empty. job_id, attempt_id, model: of the attempt that runs there, or may run
    there. age_seconds: since it was leased, or since the quarantine began. warm_models: as reported by a
    pinned worker; for other servers the last model that ran there.
    """

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
    """A server in a report: desired state (desired, slots) and actual state (observed, cells, healthy).

    observed: on, draining, off or unknown, see `Observed`. is_paused: whether the system is paused. healthy:
    None before the first answer. tells_health: False if it answers without a health endpoint.
    holds_lost_runs_seconds: how long a lost run may hold its slot; 0 if the server reports its runs.
    last_error: of the last health probe. telemetry: the worker's last reading (`gpu_host.local.telemetry`);
    None unless the server is pinned.
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
        """Whether it answers without a health endpoint, so that a lost run holds its slot."""
        return self.healthy is True and self.tells_health is False

    def count(self, *states: CellState) -> int:
        """Number of cells in these states."""
        return sum(cell.state in states for cell in self.cells)

    @property
    def one_less(self) -> int:
        """The slot count minus one, for the control that removes a slot."""
        return max(0, self.slots - 1)

    @property
    def running(self) -> int:
        """Number of slots with a job."""
        return sum(cell.state in (CellState.BUSY, CellState.DRAINING) for cell in self.cells)

    @property
    def is_settled(self) -> bool:
        """Whether the actual state matches the desired one; a paused system counts as a match for on."""
        if self.desired is DesiredState.ON:
            return self.observed == "on" or self.is_paused
        return self.observed == "off"


@dataclass(frozen=True, slots=True)
class Fleet:
    """A report on servers. away: fleets (hash tags) whose Redis does not answer or whose index is being
    rebuilt."""

    rows: tuple[ServerRow, ...]
    away: tuple[str, ...] = ()


def read_fleet(servers: Sequence[Server], leases: LeasesOf, now: datetime) -> Fleet:
    """The report on these servers. Costs a call to Redis per few servers, and two queries.

    servers: with pool and placements fetched.
    """
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
    """The longest run limit of each server's models, in seconds."""
    if not servers:
        return {}
    found: dict[str, float] = {}
    for one in Placement.objects.filter(server__in=servers).select_related("model"):
        found[one.server_id] = max(found.get(one.server_id, 0.0), one.model.spec.run_limit_seconds)
    return found


def _measured(row: ServerRow, beat: Heartbeat | None) -> ServerRow:
    """The row with its worker's telemetry, if recent."""
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
    """The cell of a slot.

    view: None if Redis does not have the slot. suspect: its open quarantine row, which counts in any state of
    Redis."""
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
        return Cell(slot, CellState.UNKNOWN, "not in Redis")
    if view.state in ("leased", "adoptable", "settling"):
        state, reason = _running_state(view, server)
        return Cell(
            slot, state, reason, view.job_id, view.attempt_id, view.model, max(0.0, view.held_seconds), warm
        )
    state, reason = _idle_state(view, server, is_paused=is_paused)
    return Cell(slot, state, reason, warm_models=warm)


def _running_state(view: SlotView, server: Server) -> tuple[CellState, str]:
    waits = {"adoptable": "waits for a worker to continue it", "settling": "its end is being written"}
    if server.desired == DesiredState.OFF:
        return CellState.DRAINING, "is being interrupted"
    if server.desired == DesiredState.DRAINING:
        return CellState.DRAINING, waits.get(view.state, "last job before the drain is complete")
    if split_slot(view.slot)[1] >= server.slots:
        return CellState.DRAINING, "last job before the slot is removed"
    return CellState.BUSY, waits.get(view.state, "")


def _idle_state(view: SlotView, server: Server, *, is_paused: bool) -> tuple[CellState, str]:
    if view.state == "quarantined":
        return CellState.QUARANTINED, "not proven free"
    if server.host and server.healthy is False and server.desired == DesiredState.ON:
        return CellState.SICK, server.last_error or "its worker is gone"
    if view.state == "off":
        if server.desired != DesiredState.ON:
            return CellState.OFF, "drained" if server.desired == DesiredState.DRAINING else "switched off"
        return CellState.OFF, "the system is paused" if is_paused else "a job above the slot count still runs"
    if server.desired != DesiredState.ON:
        return CellState.FREE, f"not {server.desired} yet"
    if server.healthy is False:
        return CellState.SICK, server.last_error or "does not answer"
    if view.circuit is CircuitState.OPEN:
        return CellState.RESTING, "its server failed repeatedly: the circuit is open"
    if view.circuit is CircuitState.HALF_OPEN:
        return CellState.RESTING, "its server failed repeatedly: one job is sent as a trial"
    if view.resting:
        return CellState.RESTING, "its server answered that it is busy"
    return CellState.FREE, ""
