"""The graph of a run: nodes and edges of its definition, with what has become of each. A map is one node with
counts, a sub-run one node with the run to open.

The number of queries and rows depends on the definition, not on the items of maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from foundation.http_api.problems import Problem
from workflows.definition.read import read_definition
from workflows.domain.plan import NodeSpec, Plan
from workflows.domain.states import NodeState
from workflows.models import MapState, Node, Run

MAX_EDGES = 4_000
"""Edges that a picture shows."""
ORDER = ("pending", "running", "completed", "failed", "skipped", "cancelled")
"""States by the number that stands for them in `Graph.live`."""


@dataclass(frozen=True, slots=True)
class MapCounts:
    """Children of a map. left: not started."""

    total: int
    completed: int
    failed: int
    running: int
    left: int


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node of the definition. row: its newest one; None before its start. child_run_id: of a sub-run that
    is not in a map. detail: the model, workflow or signal that it names."""

    spec: NodeSpec
    state: NodeState
    detail: str
    row: Node | None
    counts: MapCounts | None
    child_run_id: str | None

    @property
    def key(self) -> str:
        return self.spec.key

    @property
    def began(self) -> datetime | None:
        return None if self.row is None else self.row.started_at or self.row.finished_at

    @property
    def ended(self) -> datetime | None:
        return None if self.row is None else self.row.finished_at


@dataclass(frozen=True, slots=True)
class Graph:
    """The nodes of a run in the order of their needs, its `on_failure` node last. edges: places in `nodes`,
    at most `MAX_EDGES`. is_cut: edges are missing."""

    nodes: list[GraphNode]
    edges: list[tuple[int, int]]
    is_cut: bool

    def shape(self) -> dict[str, Any]:
        """Return what stays the same during a run, for the picture."""
        return {
            "nodes": [[node.key, node.spec.kind.value, node.detail[:64]] for node in self.nodes],
            "edges": self.edges,
        }

    def live(self) -> list[list[Any]]:
        """Return what changes, for the picture: of each node its state (a place in `ORDER`), and of a map
        total, completed, failed and running children."""
        return [[ORDER.index(node.state.value), *_numbers(node.counts)] for node in self.nodes]


def _numbers(counts: MapCounts | None) -> list[int]:
    return [] if counts is None else [counts.total, counts.completed, counts.failed, counts.running]


def plan_of(run: Run) -> Plan:
    """Return the plan of a run's version; without nodes if this release can't read the definition."""
    try:
        return read_definition(run.version.spec)
    except Problem:
        return Plan(nodes={})


def graph_of(run: Run, plan: Plan | None = None) -> Graph:
    """Read the graph of a run: three queries."""
    plan = plan or plan_of(run)
    specs = plan.all_nodes
    rows = newest_rows(run, [spec.key for spec in specs])
    counts = map_counts(rows)
    ids = {row.id: key for key, row in rows.items() if row.kind == "workflow"}
    children = {
        ids[parent]: child
        for child, parent in Run.objects.filter(parent_node__in=list(ids)).values_list("id", "parent_node_id")
        if parent is not None
    }
    nodes = [
        GraphNode(
            spec,
            NodeState(run.node_states.get(spec.key, NodeState.PENDING.value)),
            _detail(spec),
            rows.get(spec.key),
            counts.get(spec.key),
            children.get(spec.key),
        )
        for spec in specs
    ]
    places = {spec.key: place for place, spec in enumerate(specs)}
    edges: list[tuple[int, int]] = []
    total = 0
    for spec in plan.nodes.values():
        total += len(spec.needs)
        edges += [(places[need], places[spec.key]) for need in sorted(spec.needs)[: MAX_EDGES - len(edges)]]
    return Graph(nodes, edges, total > len(edges))


def newest_rows(run: Run, keys: list[str]) -> dict[str, Node]:
    """Return the newest row of each of these nodes, without settings and output."""
    rows = Node.objects.filter(run=run, key__in=keys).order_by("round").defer("settings", "output")
    return {row.key: row for row in rows}


def map_counts(rows: Mapping[str, Node]) -> dict[str, MapCounts]:
    """Return the counts of those of these nodes that are maps, by the keys of the mapping."""
    by_id = {row.id: key for key, row in rows.items()}
    found = {}
    for state in MapState.objects.filter(node__in=list(by_id)).defer("todo"):
        # of a restarted map, children of earlier rounds count as completed
        wanted = state.total
        kept = 0
        if state.first_round < rows[by_id[state.node_id]].round:
            kept = _kept(rows[by_id[state.node_id]], state)
        done = min(state.completed + kept, wanted)
        left = max(wanted - done - state.failed - state.running, 0)
        found[by_id[state.node_id]] = MapCounts(wanted, done, state.failed, state.running, left)
    return found


def _kept(row: Node, state: MapState) -> int:
    """Return how many children of a restarted map were completed before."""
    todo = MapState.objects.filter(node=row).values_list("todo", flat=True).get()
    return 0 if todo is None else state.total - len(todo)


def _detail(spec: NodeSpec) -> str:
    for name in ("model", "workflow", "title", "name"):
        value = spec.options.get(name)
        if isinstance(value, str):
            return value
    return ""
