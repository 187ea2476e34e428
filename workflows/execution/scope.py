"""The values that the references of a run may use: inputs, and the outputs of its nodes, read when needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.db.models import QuerySet

from jobs.models import Job
from jobs.ports import Ports
from workflows.domain.budget import Budget
from workflows.domain.plan import INPUTS, RUN
from workflows.domain.states import NodeState
from workflows.execution import reads
from workflows.execution.long_outputs import stored_output
from workflows.models import MapState, Node, Run


class RunScope(Mapping[str, Any]):
    """Values by the name with which a reference begins. A node without an output has None.

    Each output is read once, from the newest round of its node; a node that a restart runs again has none
    until it has completed again. ended: rows of nodes by key that have ended and are not written yet. Reading
    raises OverBudget and StoreError for outputs that are artifacts.
    """

    def __init__(self, run: Run, ended: Mapping[str, Node], ports: Ports) -> None:
        self._run, self._ended, self._ports = run, ended, ports
        self._known: dict[str, Any] = {RUN: {"id": run.id, "round": run.round}}

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            if name != INPUTS and name not in self._run.node_states:
                raise KeyError(name)
            self._known[name] = self._run.inputs if name == INPUTS else self._output(name)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter({INPUTS, RUN, *self._run.node_states})

    def __len__(self) -> int:
        return len(self._run.node_states) + 2

    def _output(self, key: str) -> Any:
        node = self._ended.get(key)
        if node is None:
            if self._run.node_states[key] != NodeState.COMPLETED:
                return None  # its newest row may be of an earlier round
            node = reads.newest_node.first(run=self._run.id, key=key)
        return None if node is None else output_of(node, self._ports)


def output_of(node: Node, ports: Ports) -> Any:
    """Return the output of a node; None unless it completed. Raises OverBudget, StoreError."""
    if node.state != NodeState.COMPLETED:
        return None
    if node.job_id is None:
        return stored_output(node, ports)
    return reads.result_of_job.first(id=node.job_id)


def completed_children(run: Run, base: str, first_round: int) -> QuerySet[Node]:
    """Return the children of a map that completed in this round or later."""
    return Node.objects.filter(
        run=run,
        base=base,
        index__isnull=False,
        state=NodeState.COMPLETED.value,
        round__gte=first_round,
    )


def map_output(run: Run, state: MapState, ended: Iterable[Node], budget: Budget, ports: Ports) -> list[Any]:
    """Return the outputs of a map's children, in order; None for one that did not complete.

    ended: children whose ends are not written yet. Raises OverBudget before it has read much more than may be
    stored.
    """
    children = completed_children(run, state.node.base, state.first_round)
    found: list[Any] = [None] * state.total
    jobs: dict[str, int] = {}

    def add(child: Node) -> None:
        assert child.index is not None
        if child.job_id is None:
            found[child.index] = budget.take(stored_output(child, ports))
        else:
            jobs[child.job_id] = child.index

    for child in children.only("index", "job_id", "output", "output_artifact").iterator(chunk_size=100):
        add(child)
    for child in ended:
        if child.state == NodeState.COMPLETED:
            add(child)
    names = list(jobs)
    for start in range(0, len(names), 500):
        results = Job.objects.filter(id__in=names[start : start + 500]).values_list("id", "result")
        for job_id, result in results.iterator(chunk_size=20):
            found[jobs[job_id]] = budget.take(result)
    return found
