"""Which layout each fleet's index has, and which processes know another one: for operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpus.models import Process
from gpus.registry import processes
from gpus.registry import queries as fleet_queries
from gpus.registry.layouts import IndexState, read_index_states


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
    states = {fleet: rows.get(fleet, IndexState()) for fleet in sorted({*fleet_queries.fleets(), *rows})}
    return IndexReport(states, list(processes.living().order_by("kind", "name")))
