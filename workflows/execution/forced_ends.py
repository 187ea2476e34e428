"""Ends runs without the code that decides their steps, and without their definition: a run whose step raises
can be cancelled too, and one in which nothing is under way ends.

Nodes whose work has ended keep its outcome, so that a restart repeats as little as it can; all others are
cancelled. The node of `on_failure` does not run.
"""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q

from foundation.database.connections import write_lock
from jobs.domain.states import FINAL_JOB_STATES
from jobs.models import EndNotice, Job
from jobs.ports import Ports
from workflows.domain.advance import RUN_CANCELLED, RUN_FAILED, RunEnd
from workflows.domain.states import FINAL_NODE_STATES, NodeState, RunState
from workflows.execution.callbacks import callback_for
from workflows.execution.failed_steps import end_of_cancelled
from workflows.execution.notices import delete_of_ended
from workflows.execution.retried import end_postponed
from workflows.models import MapState, Node, Run, RunEvent, Wait, follower_of

_FINAL_JOB = [state.value for state in FINAL_JOB_STATES]


def end_cancelled(run_id: str, ports: Ports) -> tuple[Run, RunEnd] | None:
    """End a run whose cancel was requested and whose step raises, once nothing of it is under way. Return it
    and its end; None if it does not end."""
    failing = Run.objects.filter(
        id=run_id,
        state=RunState.RUNNING.value,
        cancel_requested_at__isnull=False,
        failing_step=F("steps"),
    ).first()
    if failing is None or _is_under_way(run_id):
        return None
    end = end_of_cancelled(failing)
    return (failing, end) if end_by_force(failing, end, ports) else None


def end_by_force(run: Run, end: RunEnd, ports: Ports) -> bool:
    """End a running run. run: as it was read; False if it has gone on since, or ended."""
    now = ports.clock.now()
    with write_lock(1), transaction.atomic():
        found = Run.objects.select_for_update().filter(
            id=run.id, steps=run.steps, state=RunState.RUNNING.value
        ).first()  # fmt: skip
        if found is None:
            return False
        _end_nodes(found, RUN_CANCELLED if end.state is RunState.CANCELLED else RUN_FAILED, ports)
        found.state, found.finished_at = end.state.value, now
        found.error_code, found.error_message, found.error_node = end.code, end.detail, end.node
        found.steps += 1
        found.event_seq += 1
        found.save()
        callback = callback_for(found, end, None, now=now)
        if callback is not None:
            callback.save(force_insert=True)
        RunEvent.objects.create(
            run=found,
            seq=found.event_seq,
            type=end.state.value,
            at=now,
            data={"status": end.state.value, "error": {"code": end.code, "message": end.detail}},
        )
        followers = []
        if found.parent_node_id is not None:
            parent = Node.objects.values_list("run_id", flat=True).get(id=found.parent_node_id)
            followers = [follower_of(parent)]
            EndNotice.objects.create(
                followed_by=followers[0], ended_id=run.id, round=found.round, state=end.state.value, at=now
            )
    delete_of_ended([run.id])
    ports.announce([run.id])
    if callback is not None:
        ports.wake_callbacks([callback.id])
    if followers := [*followers, *end_postponed([run.id])]:
        ports.wake_followers(followers)
    return True


def _is_under_way(run_id: str) -> bool:
    """Return True if a job, a sub-run or a wait of a run has not ended."""
    nodes = Node.objects.filter(run_id=run_id, finished_at=None)
    jobs = Job.objects.filter(id=OuterRef("job_id")).exclude(state__in=_FINAL_JOB)
    children = Run.objects.filter(parent_node_id=OuterRef("id"), state=RunState.RUNNING.value)
    waits = Wait.objects.filter(node_id=OuterRef("id"), answered_at=None)
    return nodes.filter(Q(Exists(jobs)) | Q(Exists(children)) | Q(Exists(waits))).exists()


def _end_nodes(run: Run, code: str, ports: Ports) -> None:
    """End all nodes of a run. code: of those whose work has no end."""
    now = ports.clock.now()
    nodes = list(Node.objects.filter(run=run, finished_at=None))
    ends = _Ends(run, nodes)
    for node in nodes:
        state = ends.of(node)
        node.state, node.finished_at = (state or NodeState.CANCELLED).value, now
        if state is None:
            node.code = code
    Node.objects.bulk_update(
        nodes, ["state", "finished_at", "output", "output_artifact", "code", "detail"], batch_size=200
    )
    for counts in MapState.objects.filter(node__in=[node for node in nodes if node.job_id is None]):
        base = ends.base_of[counts.node_id]
        children = [one for one in nodes if one.index is not None and one.base == base]
        completed = sum(one.state in (NodeState.COMPLETED, NodeState.SKIPPED) for one in children)
        counts.completed += completed
        counts.failed += len(children) - completed
        counts.running = 0
        counts.save(update_fields=["completed", "failed", "running"])
    for key, known in run.node_states.items():
        if known not in FINAL_NODE_STATES:
            run.node_states[key] = NodeState.CANCELLED.value
    run.node_states |= {node.base: node.state for node in nodes if node.index is None}


class _Ends:
    """The ends of the work of these nodes. base_of: by the id of a node."""

    def __init__(self, run: Run, nodes: list[Node]) -> None:
        self.base_of = {node.id: node.base for node in nodes}
        ids = list(self.base_of)
        jobs = Job.objects.filter(id__in=[node.job_id for node in nodes if node.job_id], state__in=_FINAL_JOB)
        self._jobs = {one["id"]: one for one in jobs.values("id", "state", "error_code", "error_message")}
        children = Run.objects.filter(parent_node__in=ids).exclude(state=RunState.RUNNING.value)
        self._children = {child.parent_node_id: child for child in children}
        notices = EndNotice.objects.filter(followed_by=follower_of(run.id), ended_id__in=ids)
        self._waits: Mapping[str, str] = dict(notices.values_list("ended_id", "state"))
        self._answers = dict(Wait.objects.filter(node__in=ids).values_list("node_id", "answer"))

    def of(self, node: Node) -> NodeState | None:
        """Return the state in which a node ends, with its output and its error; None if its work has no
        end."""
        if (job := self._jobs.get(node.job_id or "")) is not None:
            if job["state"] != NodeState.COMPLETED:
                node.code, node.detail = job["error_code"], job["error_message"][:2_000]
            return NodeState(job["state"])
        if (child := self._children.get(node.id)) is not None:
            node.output, node.output_artifact = child.output, child.output_artifact
            node.code, node.detail = child.error_code, child.error_message
            return NodeState(child.state)
        if (state := self._waits.get(node.id)) is not None and state in FINAL_NODE_STATES:
            if state == NodeState.COMPLETED:
                node.output = self._answers.get(node.id)
            return NodeState(state)
        return None
