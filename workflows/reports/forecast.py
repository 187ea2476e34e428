"""When a run will probably end: the longest path through the nodes that have not ended, over run times learnt
from the models' recent jobs. Pure, but for the reading of these times."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from django.db.models import Sum

from gpus.models import Placement
from gpus.protocol import DesiredState
from jobs.ports import Ports
from jobs.reports.history import WINDOWS
from workflows.domain.plan import NodeKind, Plan
from workflows.domain.states import FINAL_NODE_STATES, NodeState, RunState
from workflows.models import Run
from workflows.reports.graph import Graph, GraphNode

RUNS_LEARNT_FROM = 20
"""Latest completed runs of a workflow whose median is the time of a sub-run."""
PEOPLE = frozenset({NodeKind.HUMAN, NodeKind.SIGNAL})


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a run will probably end. seconds: from now, without waits for free GPUs; at least so many where
    `unknown` names nodes; None: no time is known. path: keys of nodes on the longest path. answers: keys of
    nodes whose answer or signal is not counted. unknown: keys of nodes without a learnt time; they count
    as 0."""

    seconds: float | None
    path: list[str]
    answers: list[str]
    unknown: list[str]


Seconds = Callable[[GraphNode], float | None]


def forecast(run: Run, plan: Plan, graph: Graph, ports: Ports) -> Forecast | None:
    """Return the forecast of a running run; None for one that has ended."""
    if run.state != RunState.RUNNING:
        return None
    return longest_path(plan, graph, LearntTimes(run, ports), ports.clock.now())


def longest_path(plan: Plan, graph: Graph, seconds: Seconds, now: datetime) -> Forecast:
    """Return the longest path. seconds: of a whole node, or of a map's whole rest; None: unknown."""
    ends: dict[str, float] = {}
    before: dict[str, str | None] = {}
    answers, unknown = list[str](), list[str]()
    for node in graph.nodes:
        if node.key not in plan.nodes:
            continue  # on_failure runs only then
        start, previous = 0.0, None
        for need in node.spec.needs:
            if ends[need] > start:
                start, previous = ends[need], need
        left = 0.0
        if node.state not in FINAL_NODE_STATES:
            found = seconds(node)
            if node.spec.kind in PEOPLE:
                answers.append(node.key)
            elif found is None:
                unknown.append(node.key)
            left = found or 0.0
            if node.state is NodeState.RUNNING and node.began is not None and node.spec.map is None:
                left = max(left - (now - node.began).total_seconds(), 0.0)
        ends[node.key], before[node.key] = start + left, previous
    last: str | None = max(ends, key=ends.__getitem__, default=None)
    total, path = (ends[last] if last is not None else 0.0), list[str]()
    while last is not None and ends[last] > 0:
        path.append(last)
        last = before[last]
    return Forecast(None if unknown and not total else total, path[::-1], answers, unknown)


class LearntTimes:
    """Learnt seconds of nodes: the median of a model's jobs of the last day, of a workflow's last runs."""

    def __init__(self, run: Run, ports: Ports) -> None:
        self._run, self._ports = run, ports
        self._history = ports.recent_history(WINDOWS["24h"], ports.clock.now())
        self._runs: dict[str, float | None] = {}
        self._slots: dict[str, int] = {}

    def __call__(self, node: GraphNode) -> float | None:
        one = self._of_one(node)
        if one is None or node.spec.map is None:
            return one
        left = 1 if node.counts is None else node.counts.left + node.counts.running
        return one * math.ceil(left / min(node.spec.map.max_parallel, self._at_once(node)))

    def _of_one(self, node: GraphNode) -> float | None:
        if node.spec.kind is NodeKind.MODEL:
            return self._history.line(node.detail).run(0.5)
        if node.spec.kind is NodeKind.WORKFLOW:
            return self._of_runs(node.detail)
        if node.spec.kind is NodeKind.TIMER:
            given = node.spec.settings.get("seconds")
            return float(given) if isinstance(given, int | float) and not isinstance(given, bool) else None
        return None

    def _of_runs(self, name: str) -> float | None:
        if name not in self._runs:
            runs = Run.objects.filter(
                tenant_id=self._run.tenant_id, version__workflow__name=name, state=RunState.COMPLETED.value
            ).order_by("-id")
            times = [
                (end - begin).total_seconds()
                for begin, end in runs.values_list("created_at", "finished_at")[:RUNS_LEARNT_FROM]
                if end is not None
            ]
            self._runs[name] = median(times) if times else None
        return self._runs[name]

    def _at_once(self, node: GraphNode) -> int:
        """Return how many children can run at once: slots of the model's servers."""
        if node.spec.kind is not NodeKind.MODEL:
            return 1_000
        if node.detail not in self._slots:
            placed = Placement.objects.filter(model__name=node.detail, server__desired=DesiredState.ON.value)
            self._slots[node.detail] = placed.aggregate(all=Sum("server__slots"))["all"] or 1
        return self._slots[node.detail]
