"""Reports on servers with their running jobs, on the processes of the dispatcher, and on the key layouts in
use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import DurationField, Exists, ExpressionWrapper, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from gpus.errors import REDIS_AWAY
from gpus.models import Process, QuarantinedSlot, Server
from gpus.protocol import slot_name
from gpus.registry import processes, queries
from gpus.registry.index_sync import LeasesOf
from gpus.registry.layouts import IndexState, read_index_states
from gpus.registry.processes import silent_after
from gpus.reports import Cell, CellState, ServerRow, read_fleet
from jobs.models import Attempt

SERVERS_PER_PAGE = 100


@dataclass(frozen=True, slots=True)
class LiveAttempt:
    """A running attempt. number: of the attempt within its job. state: `sent`, or `waiting` (polled)."""

    id: str
    job_id: str
    tenant: str
    model: str
    number: int
    state: str
    started_at: datetime
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """One page of servers. rows: sorted by name. total: number of servers that match. attempts: running
    attempts on these servers, by slot. away: fleets (hash tags) whose Redis does not answer."""

    rows: tuple[ServerRow, ...]
    total: int
    attempts: dict[str, LiveAttempt]
    away: tuple[str, ...]


def fleet_snapshot(
    leases: LeasesOf,
    now: datetime,
    *,
    pool: str = "",
    search: str = "",
    troubled: bool = False,
    page: int = 0,
    per_page: int = SERVERS_PER_PAGE,
) -> FleetSnapshot:
    """Return one page of servers with their slots and running attempts.

    search: part of a server's name. troubled: only servers that are not on, not healthy, or have a slot in
    quarantine. page: from 0, with `per_page` servers. Six queries, and one call to Redis per few servers.
    """
    servers = _servers(pool, search, troubled=troubled)
    first = max(0, page) * per_page
    chosen = list(servers.select_related("pool").prefetch_related("placements")[first : first + per_page])
    return _snapshot(chosen, servers.count(), leases, now)


def server_snapshot(name: str, leases: LeasesOf, now: datetime) -> FleetSnapshot | None:
    """Return the report on one server; None if there is none of this name."""
    chosen = list(Server.objects.filter(name=name).select_related("pool").prefetch_related("placements"))
    return _snapshot(chosen, 1, leases, now) if chosen else None


def _snapshot(chosen: Sequence[Server], total: int, leases: LeasesOf, now: datetime) -> FleetSnapshot:
    found = read_fleet(chosen, leases, now)
    attempts = _attempts([server.name for server in chosen])
    rows = tuple(
        replace(row, cells=tuple(_from_database(cell, attempts.get(cell.slot), now) for cell in row.cells))
        for row in found.rows
    )
    return FleetSnapshot(rows, total, attempts, found.away)


def _servers(pool: str, search: str, *, troubled: bool) -> QuerySet[Server]:
    servers = Server.objects.order_by("name")
    if pool:
        servers = servers.filter(pool=pool)
    if search:
        servers = servers.filter(name__icontains=search)
    if troubled:
        suspect = QuarantinedSlot.objects.filter(server=OuterRef("name"), freed_at=None)
        servers = servers.filter(~Q(desired="on") | Q(healthy=False) | Exists(suspect))
    return servers


def _attempts(names: Sequence[str]) -> dict[str, LiveAttempt]:
    """Return the live attempts on these servers, by slot; a unique index allows one per slot."""
    rows = Attempt.objects.filter(server__in=list(names), state__in=Attempt.LIVE).order_by()
    return {
        slot_name(row.server, row.slot): LiveAttempt(
            id=row.id,
            job_id=row.job_id,
            tenant=row.job.tenant.name,
            model=row.model,
            number=row.number,
            state=row.state,
            started_at=row.started_at,
            cancel_requested=row.job.cancel_requested_at is not None,
        )
        for row in rows.select_related("job__tenant").only(
            "server", "slot", "model", "number", "state", "started_at", "job__cancel_requested_at",
            "job__tenant__name",
        )
    }  # fmt: skip


def _from_database(cell: Cell, attempt: LiveAttempt | None, now: datetime) -> Cell:
    """Fill a cell without data from Redis with the live attempt in the database."""
    if cell.state is not CellState.UNKNOWN or attempt is None:
        return cell
    return replace(
        cell,
        state=CellState.BUSY,
        reason=f"by the database; {REDIS_AWAY}",
        job_id=attempt.job_id,
        attempt_id=attempt.id,
        model=attempt.model,
        age_seconds=max(0.0, (now - attempt.started_at).total_seconds()),
    )


# -- processes ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A process of the dispatcher. beat_seconds: since its last heartbeat, by the database's clock. running:
    number of its live attempts. servers: names of their servers."""

    name: str
    kind: str
    layout: int
    queues: tuple[str, ...]
    started_at: datetime
    beat_at: datetime
    beat_seconds: float
    is_live: bool
    running: int
    servers: tuple[str, ...]


def workers() -> list[WorkerRow]:
    """Return all processes with a heartbeat in the last day, except those that were stopped."""
    age = ExpressionWrapper(Now() - F("beat_at"), output_field=DurationField())
    runs: dict[str, list[str]] = {}
    for worker, server in Attempt.objects.filter(state__in=Attempt.LIVE).values_list("worker", "server"):
        runs.setdefault(worker, []).append(server)
    silent = silent_after()
    return [
        WorkerRow(
            name=row.name,
            kind=row.kind,
            layout=row.layout,
            queues=tuple(row.queues.split()),
            started_at=row.started_at,
            beat_at=row.beat_at,
            beat_seconds=max(timedelta(), row.age).total_seconds(),
            is_live=row.age <= silent,
            running=len(runs.get(row.name, ())),
            servers=tuple(sorted(set(runs.get(row.name, ())))),
        )
        for row in Process.objects.annotate(age=age).order_by("kind", "name")
    ]


@dataclass(frozen=True, slots=True)
class IndexReport:
    """Key layouts in use. states: by fleet. processes: all live ones."""

    states: dict[str, IndexState]
    processes: Sequence[Process]

    def others(self, state: IndexState) -> list[Process]:
        """Return the processes of another layout, which can only keep the leases they hold."""
        return [one for one in self.processes if one.layout != state.layout]

    def can_take_over(self, layout: int) -> bool:
        """Return True if a GPU worker and a sweep process of this layout are alive."""
        kinds = {one.kind for one in self.processes if one.layout == layout}
        return {Process.Kind.GPU.value, Process.Kind.SWEEPS.value} <= kinds


def index_report() -> IndexReport:
    """Return the layouts of all fleets and the live processes; two queries."""
    rows = read_index_states()
    states = {fleet: rows.get(fleet, IndexState()) for fleet in sorted({*queries.fleets(), *rows})}
    return IndexReport(states, list(processes.live_processes().order_by("kind", "name")))
