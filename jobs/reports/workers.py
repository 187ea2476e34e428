"""For operators: which processes of the dispatcher live, what they do, and which key layouts they know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import DurationField, ExpressionWrapper, F
from django.db.models.functions import Now

from gpus.models import Process
from gpus.registry import processes, queries
from gpus.registry.processes import IndexState, read_index_states, silent_after
from jobs.models import Attempt


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
