"""Precompiled reads of the advancer, which asks them at each step of each run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from foundation.database.statements import Read, ReadAmong, value
from jobs.models import EndNotice, Job
from workflows.domain.states import NodeState, RunState
from workflows.models import MapState, Node, Run, Wait

NOTICES = 500
"""Most notices that one transaction takes into account."""

runs_to_advance = ReadAmong(
    (Run, "id"),
    rows=lambda ids: Run.objects.filter(id__in=ids).defer(
        "inputs", "output", "kept_maps", "error_message", "failing_since", "step_error"
    ),
)
"""Runs without what few steps need; that is read where it is used."""

notices_among = ReadAmong(
    (EndNotice, "followed_by"),
    rows=lambda names: EndNotice.objects.filter(followed_by__in=names).order_by("id")[:NOTICES],
)

open_maps = Read(
    lambda: MapState.objects.select_related("node").filter(
        node__run_id=value(Run, "id", "run"), node__finished_at=None
    )
)

newest_node = Read(
    lambda: (
        Node.objects.filter(run_id=value(Run, "id", "run"), key=value(Node, "key"))
        .order_by("-round")
        .only("id", "state", "job_id", "output", "output_artifact")[:1]
    )
)

run_of_node = Read(lambda: Node.objects.filter(id=value(Node, "id")).values_list("run_id", flat=True))

result_of_job = Read(lambda: Job.objects.filter(id=value(Job, "id")).values_list("result", flat=True))

_of_jobs = ReadAmong(
    (Node, "job_id"),
    rows=lambda ids: Node.objects.filter(job_id__in=ids).defer("settings", "output"),
)
_of_ids = ReadAmong(
    (Node, "id"), rows=lambda ids: Node.objects.filter(id__in=ids).defer("settings", "output")
)
_among = ReadAmong(
    (Run, "id"),
    rows=lambda ids: Run.objects.filter(id__in=ids).only(
        "id", "state", "output", "output_artifact", "error_code", "error_message", "parent_node_id"
    ),
)
_errors = ReadAmong(
    (Job, "id"),
    rows=lambda ids: Job.objects.filter(id__in=ids).values_list("id", "error_code", "error_message"),
)
_answers = ReadAmong(
    (Node, "id"),
    rows=lambda ids: Wait.objects.filter(node__id__in=ids).values_list("node_id", "answer"),
)


def nodes_of(job_ids: Sequence[str]) -> Mapping[str, str]:
    """Return the key of the node of each of these jobs, by job id."""
    found = Node.objects.filter(job_id__in=job_ids).values_list("job_id", "key")
    return {job_id: key for job_id, key in found if job_id is not None}


class EndedNodes:
    """The nodes of a run whose work has ended, by the id in the notice: of the job, sub-run or node (a wait).

    child_runs: sub-runs that had ended, by the id of their node. errors: codes and messages, by job id.
    answers: by the id of the node that waited.
    """

    def __init__(self, run: Run, notices: Sequence[EndNotice]) -> None:
        self.by_ended_id: dict[str, Node] = {}
        self.child_runs: dict[str, Run] = {}
        self.answers: dict[str, object] = {}
        ids = list(dict.fromkeys(notice.ended_id for notice in notices))
        for node in _of_jobs(ids):
            if node.job_id is not None and node.run_id == run.id:
                self.by_ended_id[node.job_id] = node
        waits = self._without(ids)
        for node in _of_ids(waits):
            if node.run_id == run.id:
                self.by_ended_id[node.id] = node
        if waits:
            self.answers = dict(_answers(waits))
        children = {child.parent_node_id: child for child in _among(self._without(ids))}
        for node in _of_ids(list(children)):
            if node.run_id == run.id:
                child = self.child_runs[node.id] = children[node.id]
                self.by_ended_id[child.id] = node
        bad = [one.ended_id for one in notices if one.state != NodeState.COMPLETED]
        self.errors = {job_id: (code, message) for job_id, code, message in _errors(self._jobs_among(bad))}

    def runs_again(self, node: Node) -> bool:
        """Return True if the sub-run of a node was restarted after its end. Its next end sends a notice."""
        child = self.child_runs.get(node.id)
        return child is not None and child.state == RunState.RUNNING

    def _without(self, ids: Iterable[str]) -> list[str]:
        return [one for one in ids if one not in self.by_ended_id]

    def _jobs_among(self, ids: Iterable[str]) -> list[str]:
        found = (one for one in ids if one in self.by_ended_id)
        return [one for one in found if self.by_ended_id[one].job_id == one]
