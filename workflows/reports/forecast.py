"""When a run will probably end: the longest path through the nodes that have not ended, over run times learnt
from the models' recent jobs. `longest_path` is pure; `Remaining` reads what it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from django.db.models import Sum

from foundation.http_api.json_body import read_time
from gpus.models import Placement
from gpus.protocol import DesiredState
from jobs.models import Job
from jobs.ports import Ports
from jobs.reports.history import WINDOWS
from jobs.transitions import WAITING
from workflows.domain.plan import INPUTS, RUN, MapSpec, NodeKind, Plan
from workflows.domain.states import FINAL_NODE_STATES, NodeState, RunState
from workflows.domain.template import Reference, Unresolved, references, resolve
from workflows.models import Run, Wait
from workflows.reports.explain import Allowance, RunReason
from workflows.reports.graph import Graph, GraphNode, graph_of, plan_of

RUNS_LEARNT_FROM = 20
"""Latest completed runs of a workflow whose median is the time of a sub-run; those under way that are not
looked into count by it, too."""
PAUSED, CANCELLING = "paused", "cancelling"


@dataclass(frozen=True, slots=True)
class Forecast:
    """When a run will probably end. seconds: from now, if each answer came at once; at least so many where
    `unknown` names nodes; None: no time is known. unanswered_seconds: if no answer came, and each wait lasted
    until its expiry; None: one has none, or a time is unknown. path: keys of nodes on the longest path.
    answers: keys of nodes that wait for people or signals. unknown: keys of nodes without a learnt time, or
    whose job can't start for now. misses_deadline: the run's deadline comes first. held: `PAUSED` or
    `CANCELLING`: why nothing else is known."""

    seconds: float | None = None
    unanswered_seconds: float | None = None
    path: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    misses_deadline: bool = False
    held: str | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a node. seconds: if each answer came at once; at least, unless it `is_known`.
    unanswered: if none came; None: for ever. asks: it waits for a person or a signal."""

    seconds: float
    unanswered: float | None
    is_known: bool = True
    asks: bool = False

    def times(self, count: int) -> Left:
        """Return what is left of so many in a row."""
        if count == 0:
            return _surely(0.0)
        unanswered = None if self.unanswered is None else self.unanswered * count
        return replace(self, seconds=self.seconds * count, unanswered=unanswered)

    def delayed(self, seconds: float) -> Left:
        """Return the rest of the same node if it starts `seconds` later."""
        return replace(self, seconds=self.seconds + seconds, unanswered=_sum(self.unanswered, seconds))

    def after(self, seconds: float) -> Left:
        """Return the rest of the same node once it has run for `seconds`."""
        unanswered = None if self.unanswered is None else max(self.unanswered - seconds, 0.0)
        return replace(self, seconds=max(self.seconds - seconds, 0.0), unanswered=unanswered)


UNKNOWN = Left(0.0, None, is_known=False)
LeftOf = Callable[[GraphNode, float], Left]
"""Returns what is left of a node, of a map's whole rest, that starts so many seconds from now."""


def _surely(seconds: float) -> Left:
    return Left(max(seconds, 0.0), max(seconds, 0.0))


def forecast(
    run: Run,
    plan: Plan,
    graph: Graph,
    ports: Ports,
    *,
    reasons: Collection[RunReason] = (),
    allowed: Allowance | None = None,
) -> Forecast | None:
    """Return the forecast of a running run; None for one that has ended. reasons: of `explain_run`: when its
    waiting jobs will start. allowed: sub-runs that it may look into; None: as many as one report."""
    if run.state != RunState.RUNNING:
        return None
    if run.cancel_requested_at is not None or run.paused_at is not None:
        return Forecast(held=CANCELLING if run.cancel_requested_at is not None else PAUSED)
    left_of = Remaining(run, graph, ports, reasons=reasons, allowed=allowed or Allowance())
    found = longest_path(plan, graph, left_of)
    if run.deadline_at is None:
        return found
    end = ports.clock.now() + timedelta(seconds=found.seconds or 0.0)
    return replace(found, misses_deadline=end >= run.deadline_at)


def longest_path(plan: Plan, graph: Graph, left_of: LeftOf) -> Forecast:
    """Return the longest path."""
    if not plan.nodes:
        return Forecast()  # of a definition that this release can't read
    ends: dict[str, float] = {}
    latest: dict[str, float | None] = {}
    before: dict[str, str | None] = {}
    answers, unknown = list[str](), list[str]()
    for node in graph.nodes:
        if node.key not in plan.nodes and node.state is not NodeState.RUNNING:
            continue  # on_failure
        start, previous = 0.0, None
        for need in node.spec.needs:
            if ends[need] > start:
                start, previous = ends[need], need
        left = _surely(0.0) if node.state in FINAL_NODE_STATES else left_of(node, start)
        if left.asks:
            answers.append(node.key)
        if not left.is_known:
            unknown.append(node.key)
        ends[node.key], before[node.key] = start + left.seconds, previous
        starts = [latest[need] for need in node.spec.needs]
        latest[node.key] = _sum(_longest(starts), left.unanswered)
    last: str | None = max(ends, key=ends.__getitem__, default=None)
    total, path = (ends[last] if last is not None else 0.0), list[str]()
    while last is not None and ends[last] > 0:
        path.append(last)
        last = before[last]
    return Forecast(
        None if unknown and not total else total,
        None if unknown else _longest(list(latest.values())),
        tuple(path[::-1]),
        tuple(answers),
        tuple(unknown),
    )


def _longest(times: list[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return max(known, default=0.0) if len(known) == len(times) else None


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


class Remaining:
    """What is left of the nodes of a run: a model counts with the median of its jobs of the last day, a
    workflow with that of its last runs."""

    def __init__(
        self,
        run: Run,
        graph: Graph,
        ports: Ports,
        *,
        reasons: Collection[RunReason],
        allowed: Allowance,
    ) -> None:
        self._run, self._ports, self._now = run, ports, ports.clock.now()
        self._allowed = allowed
        self._history = ports.recent_history(WINDOWS["24h"], self._now)
        self._runs: dict[str, float | None] = {}
        self._slots: dict[str, int] = {}
        self._reasons = {one.node: one for one in reasons if one.reasons}
        rows = [
            node.row
            for node in graph.nodes
            if node.state is NodeState.RUNNING and node.row and not node.counts
        ]
        jobs = Job.objects.filter(id__in=[row.job_id for row in rows if row.job_id])
        self._jobs = {job: (state, at) for job, state, at in jobs.values_list("id", "state", "started_at")}
        waits = Wait.objects.filter(node__in=[row.id for row in rows], answered_at=None)
        self._dues = dict(waits.values_list("node_id", "due_at"))

    def __call__(self, node: GraphNode, start: float) -> Left:
        if node.spec.map is None and node.state is NodeState.RUNNING and node.row is not None:
            return self._of_running(node)
        one = self._of_one(node, start)
        if node.spec.map is None:
            return one
        items = self._items(node, node.spec.map)
        at_once = min(node.spec.map.max_parallel, self._at_once(node))
        whole = one.times(math.ceil((1 if items is None else items) / at_once))
        return whole if items is not None else replace(whole, is_known=False)

    def _items(self, node: GraphNode, spec: MapSpec) -> int | None:
        """Return how many items of a map have not ended; None: its list is not known yet."""
        if node.counts is not None:
            return node.counts.left + node.counts.running
        found = self._resolved(spec.count if spec.over is None else spec.over)
        if isinstance(found, list):
            return len(found)
        return found if type(found) is int else None

    def _of_running(self, node: GraphNode) -> Left:
        row = node.row
        assert row is not None
        if node.spec.kind is NodeKind.MODEL:
            return self._of_job(node, row.job_id or "")
        if node.spec.kind is NodeKind.WORKFLOW:
            return self._of_sub_run(node)
        if row.id not in self._dues:
            return _surely(0.0)  # its end is about to be read
        due = self._dues[row.id]
        until = None if due is None else max((due - self._now).total_seconds(), 0.0)
        if node.spec.kind is NodeKind.TIMER:
            return UNKNOWN if until is None else _surely(until)
        return Left(0.0, until, asks=True)

    def _of_job(self, node: GraphNode, job_id: str) -> Left:
        if job_id not in self._jobs:
            return _surely(0.0)  # its end is about to be read
        state, started_at = self._jobs[job_id]
        whole = self._of_one(node, 0.0)
        if state not in WAITING:
            return whole.after(self._since(started_at))
        reason = self._reasons.get(node.key)
        if reason is None:
            return whole  # not explained: one of many
        if reason.starts is None:
            return replace(whole, is_known=False)
        return whole.delayed(max(reason.starts.p50_seconds, 0.0))

    def _of_sub_run(self, node: GraphNode) -> Left:
        run = self._allowed.sub_run(node.child_run_id)
        if run is None:
            return self._of_one(node, 0.0).after(self._since(node.began))
        plan = plan_of(run)
        found = forecast(run, plan, graph_of(run, plan), self._ports, allowed=self._allowed)
        if found is None:
            return _surely(0.0)  # its end is about to be read
        is_known = not found.unknown and found.held is None
        return Left(found.seconds or 0.0, found.unanswered_seconds, is_known, bool(found.answers))

    def _since(self, began: datetime | None) -> float:
        """Return the seconds since then; 0 for None."""
        return 0.0 if began is None else max((self._now - began).total_seconds(), 0.0)

    def _of_one(self, node: GraphNode, start: float) -> Left:
        """Return what is left of a node, or of one child of a map, that starts so many seconds from now."""
        match node.spec.kind:
            case NodeKind.MODEL:
                return _learnt(self._history.line(node.detail).run(0.5))
            case NodeKind.WORKFLOW:
                return _learnt(self._of_runs(node.detail))
            case NodeKind.TIMER:
                return self._of_timer(node.spec.settings, start)
            case _:
                return Left(0.0, node.spec.options.get("expires_seconds"), asks=True)

    def _of_timer(self, settings: Mapping[str, Any], start: float) -> Left:
        seconds, until = (self._resolved(settings.get(name)) for name in ("seconds", "until"))
        if isinstance(seconds, int | float) and not isinstance(seconds, bool):
            return _surely(float(seconds))
        at = read_time(until) if isinstance(until, str) else None
        return UNKNOWN if at is None else _surely((at - self._now).total_seconds() - start)

    def _resolved(self, template: Any) -> Any:
        """Return the value of a template that needs only the inputs; else None."""
        known = {INPUTS: self._run.inputs, RUN: {"id": self._run.id}}
        for one in references(template):
            if not isinstance(one, Reference) or one.expression.names - known.keys():
                return None
        try:
            return resolve(template, known)
        except Unresolved:
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


def _learnt(seconds: float | None) -> Left:
    return UNKNOWN if seconds is None else _surely(seconds)
