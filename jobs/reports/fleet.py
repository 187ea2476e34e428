"""Who works where: the fleet of `gpus.reports` with the jobs that run on it; and which processes of the
dispatcher live, what they do, and which key layouts they know."""

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
from gpus.registry.processes import IndexState, read_index_states, silent_after
from gpus.reports import Cell, CellState, ServerRow, read_fleet
from jobs.models import Attempt

SERVERS_PER_PAGE = 100


@dataclass(frozen=True, slots=True)
class LiveAttempt:
    """number: which try of the job it is. state: sent, or waiting for a GPU server that is polled."""

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
    """rows: one page of servers by name. total: how many there are of what was asked for. attempts: those
    under way on these servers, by slot. away: fleets (hash tags) whose Redis does not answer."""

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
) -> FleetSnapshot:
    """search: part of a server's name. troubled: only what is not simply on and well.
    Six queries, and a call to Redis for each few servers."""
    servers = _servers(pool, search, troubled=troubled)
    first = max(0, page) * SERVERS_PER_PAGE
    chosen = list(
        servers.select_related("pool").prefetch_related("placements")[first : first + SERVERS_PER_PAGE]
    )
    found = read_fleet(chosen, leases, now)
    attempts = _attempts([server.name for server in chosen])
    rows = tuple(
        replace(row, cells=tuple(_from_database(cell, attempts.get(cell.slot), now) for cell in row.cells))
        for row in found.rows
    )
    return FleetSnapshot(rows, servers.count(), attempts, found.away)


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
    """By slot; at most one each, by the index that also makes this cheap."""
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
    """While Redis does not answer, the database still says what runs."""
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
    """A process. beat_seconds: since its last sign of life, by the database's clock. servers: where its
    attempts run now, by name; running: how many of them."""

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
    """Return all processes that said in the last day that they live, those that signed off aside."""
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
    """states: of all fleets. processes: those that live."""

    states: dict[str, IndexState]
    processes: Sequence[Process]

    def others(self, state: IndexState) -> list[Process]:
        """Processes that do nothing with an index of this state but as holders of leases."""
        return [one for one in self.processes if one.layout != state.layout]

    def can_take_over(self, layout: int) -> bool:
        """Whether a GPU worker and a sweeper that know this layout live."""
        kinds = {one.kind for one in self.processes if one.layout == layout}
        return {Process.Kind.GPU.value, Process.Kind.SWEEPS.value} <= kinds


def index_report() -> IndexReport:
    """Two questions to the database."""
    rows = read_index_states()
    states = {fleet: rows.get(fleet, IndexState()) for fleet in sorted({*queries.fleets(), *rows})}
    return IndexReport(states, list(processes.living().order_by("kind", "name")))
