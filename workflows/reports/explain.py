"""Why a run waits: which nodes, and for what. Waiting jobs are explained as by `explain_job`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from foundation.texts import counted
from gpus.leasing.values import StartsIn
from jobs.explain.snapshot import Reason
from jobs.models import Job
from jobs.operations.explain_job import explain_job
from jobs.ports import Ports
from jobs.transitions import WAITING
from workflows.domain.plan import NodeKind, Plan
from workflows.domain.states import NodeState, RunState
from workflows.models import Node, Run, Wait
from workflows.reports.graph import Graph, GraphNode, graph_of, plan_of

MAX_NODES = 20
"""Nodes that an explanation names."""
MAX_JOBS = 5
"""Waiting jobs that are explained; each takes one call to Redis and four queries."""
MAX_SUB_RUNS = 5
"""Sub-runs that are looked into, on all levels; each takes a few queries."""


@dataclass(slots=True)
class Allowance:
    """What one report may still read: waiting jobs, and sub-runs."""

    jobs: int = MAX_JOBS
    sub_runs: int = MAX_SUB_RUNS

    def sub_run(self, run_id: str | None) -> Run | None:
        """Return the sub-run; None if there is none, or no more may be read."""
        if run_id is None or self.sub_runs <= 0:
            return None
        self.sub_runs -= 1
        return Run.objects.select_related("version").filter(id=run_id).first()


@dataclass(frozen=True, slots=True)
class RunReason:
    """A reason why a run waits. node: empty: the run as a whole. job_id, child_run_id: what it waits for.
    position, starts: of the waiting job, as of `explain_job`. reasons: of it, the most binding first."""

    code: str
    message: str
    node: str = ""
    job_id: str | None = None
    child_run_id: str | None = None
    until: datetime | None = None
    position: int | None = None
    starts: StartsIn | None = None
    reasons: tuple[Reason, ...] = ()


def explain_run(
    run: Run, plan: Plan, graph: Graph, ports: Ports, allowed: Allowance | None = None
) -> list[RunReason]:
    """Return the reasons, those of the run first, then nodes under way in the order of their needs. allowed:
    what it may read; None: as much as one report."""
    if run.state != RunState.RUNNING:
        return [RunReason(run.state, f"The run is over: it {_OVER[run.state]}.")]
    found = []
    if run.is_failing and run.step_retry_at is not None:
        text = f"Its next step raised {counted(run.step_failures, 'error')} in a row, and is tried again."
        found.append(RunReason("step_fails", text, until=run.step_retry_at))
    if run.cancel_requested_at is not None:
        found.append(RunReason("cancelling", "Its cancel was requested: it ends once its jobs have."))
    elif run.paused_at is not None:
        found.append(RunReason("paused", "The run is paused: no further node starts until it is resumed."))
    running = [node for node in graph.nodes if node.state is NodeState.RUNNING][:MAX_NODES]
    of_nodes = _Reasons(run, running, ports, Allowance() if allowed is None else allowed)
    found += [of_nodes.of(node) for node in running]
    if not found:
        found.append(RunReason("advancing", "Its next nodes are about to start."))
    return found


_UNDER_WAY = frozenset({"job_running", "starting", "ending", "advancing"})
"""Codes of reasons that are no wait."""
_OVER = {"completed": "completed", "failed": "failed", "cancelled": "was cancelled"}


class _Reasons:
    """Reasons of nodes under way; what they wait for is read at once."""

    def __init__(self, run: Run, nodes: list[GraphNode], ports: Ports, allowed: Allowance) -> None:
        self._run, self._ports, self._allowed = run, ports, allowed
        rows = [node.row.id for node in nodes if node.row is not None]
        waits = Wait.objects.filter(node__in=rows, answered_at=None).defer("options", "answer")
        self._waits = {wait.node_id: wait for wait in waits}
        ids = [node.row.job_id for node in nodes if node.row is not None and node.row.job_id]
        jobs = Job.objects.select_related("tenant").defer("payload", "result", "metadata")
        self._jobs = {job.id: job for job in jobs.filter(id__in=ids)}

    def of(self, node: GraphNode) -> RunReason:
        """Return the reason of a node that runs."""
        if node.counts is not None:
            return self._of_map(node)
        row = node.row
        if row is None:
            return RunReason("starting", "It is about to start.", node.key)
        if node.child_run_id:
            text = f"The run of the workflow {node.detail} is under way."
            return self._of_sub_run("sub_run", text, node, node.child_run_id)
        if (wait := self._waits.get(row.id)) is not None:
            return _of_wait(node, wait)
        job = self._jobs.get(row.job_id or "")
        return (
            RunReason("ending", "Its end is being read.", node.key)
            if job is None
            else self._of_job(node.key, job)
        )

    def _of_job(self, key: str, job: Job) -> RunReason:
        if job.state not in WAITING:
            return RunReason("job_running", f"Its job is {job.state}.", key, job_id=job.id)
        if self._allowed.jobs <= 0:
            return RunReason("job_waiting", "Its job waits.", key, job_id=job.id)
        self._allowed.jobs -= 1
        found = explain_job(job, self._ports)
        return RunReason(
            "job_waiting",
            f"Its job waits: {found.reasons[0].message}",
            key,
            job_id=job.id,
            position=found.position,
            starts=found.starts,
            reasons=found.reasons,
        )

    def _of_sub_run(self, code: str, text: str, node: GraphNode, run_id: str | None) -> RunReason:
        """Return the reason of a node, with the first one of its sub-run."""
        whole = RunReason(code, text, node.key, child_run_id=run_id)
        run = self._allowed.sub_run(run_id)
        if run is None or run.state != RunState.RUNNING:
            return whole
        plan = plan_of(run)
        below = explain_run(run, plan, graph_of(run, plan), self._ports, self._allowed)
        first = next((one for one in below if one.code not in _UNDER_WAY), below[0])
        at = f"{first.node}: " if first.node else ""
        return replace(
            first, code=code, message=f"{text} {at}{first.message}", node=node.key, child_run_id=run_id
        )

    def _of_map(self, node: GraphNode) -> RunReason:
        """Explain the first child under way of a map."""
        counts = node.counts
        assert counts is not None
        ended = counts.completed + counts.failed
        text = f"{ended} of {counts.total} items have ended, {counts.running} are under way."
        children = Node.objects.filter(run=self._run, finished_at=None, base=node.key, index__isnull=False)
        if node.spec.kind is NodeKind.WORKFLOW:
            runs = children.order_by("index").values_list("child_runs__id", flat=True)
            return self._of_sub_run("map", text, node, runs.first())
        if node.spec.kind is not NodeKind.MODEL:
            waits = Wait.objects.filter(node__in=children, answered_at=None)
            wait = waits.order_by("due_at").defer("options", "answer").first()
            if wait is None:
                return RunReason("map", text, node.key)
            return RunReason("map", f"{text} {_of_wait(node, wait).message}", node.key, until=wait.due_at)
        first = children.exclude(job_id=None).order_by("index").values_list("job_id", flat=True).first()
        job = None
        if first is not None and self._allowed.jobs > 0:
            rows = Job.objects.select_related("tenant").defer("payload", "result", "metadata")
            job = rows.filter(id=first).first()
        if job is None or job.state not in WAITING:
            return RunReason("map", text, node.key)
        reason = self._of_job(node.key, job)
        return replace(reason, code="map", message=f"{text} {reason.message}")


def _of_wait(node: GraphNode, wait: Wait) -> RunReason:
    if wait.kind == NodeKind.HUMAN:
        named = " or ".join(node.spec.options.get("answer_by", ()))
        text = f"the API key {named}" if named else "a person"
        return RunReason("answer", f"It waits for the answer of {text}.", node.key, until=wait.due_at)
    if wait.kind == NodeKind.SIGNAL:
        return RunReason("signal", f"It waits for the signal {wait.signal}.", node.key, until=wait.due_at)
    return RunReason("timer", "It waits for its time.", node.key, until=wait.due_at)
