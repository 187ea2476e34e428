"""The laws over runs of workflows, (9) to (12), and (13) of their outputs; `verification.laws` has the rest.

They are stated over the stored rows alone, and evaluate definitions anew: the code that advances runs is not
asked what it should have done."""

from __future__ import annotations

import json
from collections import ChainMap, Counter, defaultdict
from collections.abc import Iterator, Mapping, MutableMapping
from datetime import timedelta
from functools import cached_property
from typing import Any, cast

from django.conf import settings

from artifacts.models import Artifact, ArtifactUse
from foundation.expressions import SearchFailed, is_true
from jobs.domain.states import FINAL_JOB_STATES
from jobs.models import Attempt, EndNotice, Job
from jobs.operations.erase import is_erased
from jobs.ports import Ports
from workflows.definition.read import read_definition
from workflows.domain.advance import Window
from workflows.domain.budget import Costs, OverBudget
from workflows.domain.plan import (
    ERROR,
    INDEX,
    INPUTS,
    ITEM,
    RUN,
    NeedsRule,
    NodeKind,
    NodeSpec,
    Plan,
    RunningOnFailure,
)
from workflows.domain.states import FINAL_NODE_STATES, NodeState, RunState
from workflows.domain.template import Unresolved, resolve
from workflows.execution.callbacks import callbacks_of
from workflows.execution.file_maps import items_of
from workflows.execution.long_outputs import stored_output
from workflows.execution.open_maps import MAP_FAILED
from workflows.execution.retried import postponed_of
from workflows.models import MapChunk, MapFile, MapState, Node, Run, RunEvent, Wait, follower_of

_FINAL_NODE = frozenset(state.value for state in FINAL_NODE_STATES)
_FINAL_RUN = frozenset(state.value for state in RunState if state is not RunState.RUNNING)
_FINAL_JOB = frozenset(state.value for state in FINAL_JOB_STATES)
_BAD = frozenset({NodeState.FAILED.value, NodeState.CANCELLED.value})
_BY_FORCE = frozenset({"step_failed", "stalled"})
"""Codes of runs that were ended without their definition."""
_AT_EXPIRY = {"fail": NodeState.FAILED, "skip": NodeState.SKIPPED, "default": NodeState.COMPLETED}
_WITH_RUN = frozenset({"run_failed", "run_cancelled"})
"""Codes of nodes that were cancelled with their run; a failed node may have the first one from its job."""
_WITHOUT_RUNNING = _WITH_RUN | {"needs_unmet", "needs_skipped", "when_false"}
"""Codes of nodes that ended without having started."""


def check_runs(ports: Ports, *, drained: bool) -> Iterator[str]:
    """Yield violations. drained: no writer and no sweep has anything left to do.

    Runs past their retention are left out: their jobs go first, in batches. While others write, only runs of
    the last minute are read."""
    plans: dict[int, Plan] = {}
    old = ports.clock.now() - timedelta(days=settings.DISPATCHER.retention_days)
    before = old if drained else ports.clock.now() - timedelta(minutes=1)
    for run in Run.objects.exclude(finished_at__lt=before).order_by("id").iterator(chunk_size=100):
        if run.version_id not in plans:
            plans[run.version_id] = read_definition(run.version.spec)
        rows = _Rows(run, plans[run.version_id], ports)
        yield from _ended(rows, drained)
        yield from _one_job(rows)
        yield from _handler(rows)
        yield from _cancelled_rest(rows)
        if run.erase_requested_at is not None:
            yield from _erased(rows, drained)
            continue  # what references selected is gone
        yield from _waits(rows)
        if lost := list(_long(rows)):
            yield from lost
            continue  # the other laws read these outputs
        yield from _rules(rows)
        yield from _inputs(rows)
        yield from _near(rows)
        yield from _maps(rows, drained)
        yield from _sub_runs(rows)
        yield from _output(rows)


class _Rows:
    """The rows of one run."""

    def __init__(self, run: Run, plan: Plan, ports: Ports) -> None:
        self.run, self.plan, self.ports = run, plan, ports
        self.nodes = list(Node.objects.filter(run=run).order_by("round", "id"))
        self.jobs = {job.id: job for job in Job.objects.filter(followed_by=follower_of(run.id))}
        self.newest = {node.key: node for node in self.nodes}
        self.child_runs = {child.parent_node_id: child for child in Run.objects.filter(parent_node__run=run)}

    @cached_property
    def maps(self) -> dict[str, MapState]:
        """By the id of the map's node."""
        return {state.node_id: state for state in MapState.objects.filter(node__run=self.run)}

    @cached_property
    def files(self) -> dict[str, MapFile]:
        """By the id of the map's node."""
        return {file.node_id: file for file in MapFile.objects.filter(node__run=self.run)}

    @cached_property
    def costs(self) -> Costs:
        return Costs(settings.DISPATCHER.workflow_value_bytes, settings.DISPATCHER.workflow_search_steps)

    def spec(self, base: str) -> NodeSpec | None:
        handler = self.plan.on_failure
        return handler if handler is not None and handler.key == base else self.plan.nodes.get(base)

    def is_handler(self, node: Node) -> bool:
        return self.plan.on_failure is not None and node.base == self.plan.on_failure.key

    def children(self, base: str, first_round: int, last_round: int) -> list[Node]:
        return [
            node
            for node in self.nodes
            if node.base == base and node.index is not None and first_round <= node.round <= last_round
        ]

    def output(self, key: str) -> Any:
        node = self.newest.get(key)
        return None if node is None else self.output_of(node)

    def output_of(self, node: Node) -> Any:
        if node.state != NodeState.COMPLETED:
            return None
        if node.job_id is None:
            return stored_output(node, self.ports)
        return self.jobs[node.job_id].result if node.job_id in self.jobs else None

    def scope(self, node: Node) -> Mapping[str, Any]:
        """Return the values by which the references of a node began when it started."""
        run = self.run
        names = {INPUTS: run.inputs, RUN: {"id": run.id, "round": node.round}}
        if self.is_handler(node):
            names[ERROR] = {
                "node": run.error_node or None,
                "code": run.error_code,
                "message": run.error_message,
            }
        return ChainMap(names, cast(MutableMapping[str, Any], _Outputs(self)))


class _Outputs(Mapping[str, Any]):
    """Outputs by node; reading one that is too large raises OverBudget."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    def __getitem__(self, key: str) -> Any:
        if key not in self._rows.run.node_states:
            raise KeyError(key)
        return self._rows.output(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows.run.node_states)

    def __len__(self) -> int:
        return len(self._rows.run.node_states)


def _ended(rows: _Rows, drained: bool) -> Iterator[str]:
    """Law 9: a run is final exactly if all its nodes are, with one final event and, if requested, one
    callback for each of its rounds."""
    run, is_over = rows.run, rows.run.state in _FINAL_RUN
    if run.step_failures:
        yield f"(9) a step of run {run.id} raised {run.step_failures} times: {run.step_error}"
    open_states = [key for key, state in run.node_states.items() if state not in _FINAL_NODE]
    if is_over and open_states:
        yield f"(9) run {run.id} is {run.state}, and its nodes {open_states[:5]} have not ended"
    if drained and not is_over and not open_states:
        yield f"(9) all nodes of run {run.id} have ended, and it is {run.state}"
    for node in rows.nodes:
        is_ended = node.state in _FINAL_NODE
        if is_over and not is_ended:
            yield f"(9) run {run.id} is {run.state}, and {node.key} of round {node.round} is {node.state}"
        if node.index is None and rows.newest[node.key] is node:
            known = run.node_states.get(node.key)
            if known not in (node.state, NodeState.PENDING):  # pending: a restart has yet to begin it
                yield f"(9) run {run.id} says that {node.key} is {known}, its row that it is {node.state}"
    number = RunEvent.objects.filter(run=run, type__in=sorted(_FINAL_RUN)).count()
    over = run.round if is_over else run.round - 1
    if number != over and run.event_seq:
        yield f"(9) run {run.id} ({run.state}, round {run.round}) has {number} final events"
    rounds = sorted(callbacks_of(run).values_list("round", flat=True))
    if rounds != (list(range(1, over + 1)) if run.callback_url else []):
        yield f"(9) run {run.id} ({run.state}, round {run.round}) has callbacks for rounds {rounds}"
    if drained:
        yield from _lost_ends(rows)


def _handler(rows: _Rows) -> Iterator[str]:
    """Law 9 of `on_failure`: its node has run if the last round failed, and only then. A cancel that was
    requested past the deadline, by which the run fails, keeps it from that."""
    run, spec = rows.run, rows.plan.on_failure
    is_cancelled = run.cancel_requested_at not in (None, run.deadline_at)
    if spec is None or run.state == RunState.RUNNING or run.error_code in _BY_FORCE:
        return
    node = rows.newest.get(spec.key)
    has_run = node is not None and node.round == run.round and _has_begun(node)
    if run.state == RunState.FAILED and not has_run and spec.when is None and not is_cancelled:
        yield f"(9) run {run.id} failed in round {run.round}, and its node {spec.key} did not run"
    if run.state == RunState.COMPLETED and has_run:
        yield f"(9) run {run.id} completed in round {run.round}, and its node {spec.key} ran"


def _cancelled_rest(rows: _Rows) -> Iterator[str]:
    """Law 10 where a failure cancels the rest: only the node of `on_failure` starts after it."""
    plan = rows.plan
    if plan.running_on_failure is not RunningOnFailure.CANCEL:
        return
    failure: RunEvent | None = None
    for event in RunEvent.objects.filter(run=rows.run).order_by("seq"):
        key = event.data.get("node")
        if event.type in ("restarted", "retried"):
            failure = None
        elif key not in plan.nodes or key in plan.tolerated:
            continue
        elif event.type == "node_ended" and event.data["state"] == NodeState.FAILED:
            failure = failure or event
        elif event.type == "node_started" and failure is not None and event.at != failure.at:
            yield f"(10) {key} of run {rows.run.id} started after {failure.data['node']} had failed"


def _erased(rows: _Rows, drained: bool) -> Iterator[str]:
    """A run whose data was erased has ended for good, with its sub-runs, and no row keeps its data."""
    run = rows.run
    kept = [name for name in ("inputs", "output") if not _is_gone(getattr(run, name))]
    kept += [node.key for node in rows.nodes if node.settings or node.detail or not _is_gone(node.output)]
    waits = Wait.objects.filter(node__run=run)
    kept += [f"answer of {wait.pk}" for wait in waits if wait.options or not _is_gone(wait.answer)]
    if MapChunk.objects.filter(node__run=run).exists():
        kept.append("items")
    if drained:
        ended = [job for job in rows.jobs.values() if job.state in _FINAL_JOB]
        kept += [job.id for job in ended if not (_is_gone(job.payload) and _is_gone(job.result))]
    if kept:
        yield f"run {run.id} was erased, and keeps data: {kept[:5]}"
    if run.state == RunState.RUNNING or (drained and run.erased_at is None):
        yield f"run {run.id} is to be erased, and is {run.state}, erased at {run.erased_at}"
    for child in rows.child_runs.values():
        if child.erase_requested_at is None:
            yield f"run {run.id} was erased, and its sub-run {child.id} was not"


def _is_gone(value: Any) -> bool:
    return value is None or is_erased(value)


def _waits(rows: _Rows) -> Iterator[str]:
    """Law 11 of waits: their node has the end that the wait got, with the answer as its output."""
    nodes = {node.id: node for node in rows.nodes if node.state in _FINAL_NODE}
    for wait in Wait.objects.filter(node__in=list(nodes)):
        node = nodes[wait.node_id]
        if node.code in ("run_failed", "run_cancelled"):
            continue  # the run was ended by force
        state = NodeState.COMPLETED
        if wait.answered_by == "expiry":
            state = _AT_EXPIRY[wait.options.get("on_expiry", "fail")]
        elif wait.answered_by == "cancelled":
            state = NodeState.CANCELLED
        if node.state != state or (state is NodeState.COMPLETED and node.output != wait.answer):
            yield (
                f"(11) {node.key} of run {rows.run.id} is {node.state} with {node.output}, its wait was "
                f"ended by {wait.answered_by or 'no one'} with {wait.answer}"
            )


def _lost_ends(rows: _Rows) -> Iterator[str]:
    run = rows.run
    if run.state == RunState.RUNNING and EndNotice.objects.filter(followed_by=follower_of(run.id)).exists():
        yield f"(9) run {run.id} has unread notices of ends"
    if run.state != RunState.RUNNING and EndNotice.objects.filter(followed_by=postponed_of(run.id)).exists():
        yield f"(9) run {run.id} is {run.state}, and the success of a retried job still waits for its end"
    for node in rows.nodes:
        if node.state in _FINAL_NODE:
            continue
        job, child = rows.jobs.get(node.job_id or ""), rows.child_runs.get(node.id)
        if job is not None and job.state in _FINAL_JOB:
            yield f"(9) {node.key} of run {run.id} is {node.state}, and its job {job.id} is {job.state}"
        if child is not None and child.state in _FINAL_RUN:
            yield f"(9) {node.key} of run {run.id} is {node.state}, and its sub-run is {child.state}"


def _one_job(rows: _Rows) -> Iterator[str]:
    """Law 10, first half: each node has at most one row and one job in a round, and each job one node."""
    for (key, number), count in Counter((node.key, node.round) for node in rows.nodes).items():
        if count > 1:
            yield f"(10) {key} of run {rows.run.id} started {count} times in round {number}"
    of_job = Counter(node.job_id for node in rows.nodes if node.job_id is not None)
    for job_id in rows.jobs:
        if of_job[job_id] != 1:
            yield f"(10) job {job_id} of run {rows.run.id} is that of {of_job[job_id]} nodes"
    for node in rows.nodes:
        if node.job_id is not None and node.job_id not in rows.jobs:
            yield f"(10) the job of {node.key} of run {rows.run.id} is not there"
        is_model = node.kind == NodeKind.MODEL and node.id not in rows.maps and node.id not in rows.files
        is_begun = node.state in (NodeState.RUNNING, NodeState.COMPLETED)
        is_empty = node.output == [] or is_erased(node.output)  # of a map without items
        if is_model and is_begun and not (node.job_id or node.cached_from or is_empty):
            yield f"(10) {node.key} of run {rows.run.id} is {node.state} and has no job"


def _rules(rows: _Rows) -> Iterator[str]:
    """Law 10, second half: a node ran exactly if its rule was met and its `when` was true."""
    for key, state in rows.run.node_states.items():
        node, spec = rows.newest.get(key), rows.spec(key)
        if node is None or spec is None or state == NodeState.PENDING or rows.is_handler(node):
            continue
        found = [rows.run.node_states[need] for need in spec.needs]
        if any(one not in _FINAL_NODE for one in found):
            if not _is_cut_short(node):
                yield f"(10) {key} of run {rows.run.id} is {state} before all that it needs has ended"
            continue
        met, begun = _is_met(spec.rule, found), _has_begun(node)
        if _is_cut_short(node):
            continue  # whatever it needed: it was cancelled before or during its run
        if begun and not met:
            yield f"(10) {key} of run {rows.run.id} is {state}, and its rule {spec.rule} was not met: {found}"
        if not begun and met and node.code != "when_false":
            yield f"(10) {key} of run {rows.run.id} is {state} ({node.code}), and its rule was met: {found}"
        if met and spec.when is not None:
            yield from _when(rows, node, spec, begun)


def _has_begun(node: Node) -> bool:
    return node.state == NodeState.FAILED or node.code not in _WITHOUT_RUNNING


def _is_cut_short(node: Node) -> bool:
    return node.state != NodeState.FAILED and node.code in _WITH_RUN


def _is_met(rule: NeedsRule, found: list[str]) -> bool:
    if not found or rule is NeedsRule.ALL_DONE:
        return True
    is_completed = NodeState.COMPLETED in found
    if rule is NeedsRule.ANY_SUCCESS:
        return is_completed
    return not _BAD & set(found) and (is_completed or rule is NeedsRule.NONE_FAILED)


def _when(rows: _Rows, node: Node, spec: NodeSpec, begun: bool) -> Iterator[str]:
    assert spec.when is not None
    try:
        is_wanted = is_true(rows.costs.budget().search(spec.when, rows.scope(node)))
    except (SearchFailed, OverBudget):
        return  # it failed because of that
    if begun != is_wanted:
        yield f"(10) {node.key} of run {rows.run.id} is {node.state}, and its `when` is {is_wanted}"


def _inputs(rows: _Rows) -> Iterator[str]:
    """Law 11: what a node was given is what its references select from the stored outputs."""
    items: dict[str, dict[int, Any]] = {}
    for node in rows.newest.values():
        spec = rows.spec(node.base)
        given = _given(rows, node)
        is_current = rows.run.node_states.get(node.base) != NodeState.PENDING
        if spec is None or given is None or not is_current:
            continue  # its needs may have run again since
        if rows.is_handler(node) and rows.run.state != RunState.FAILED:
            continue  # the error that it was given is not stored
        if rows.is_handler(node) and rows.run.error_code == "deadline_exceeded":
            continue
        scope: Mapping[str, Any] = rows.scope(node)
        if node.index is not None:
            newest = rows.maps.get(rows.newest[node.base].id) if node.base in rows.newest else None
            if newest is not None and node.round < newest.first_round:
                continue  # the map ran anew since
            if newest is None and node.base in rows.newest and rows.newest[node.base].round > node.round:
                continue  # … or ended before it could
            own = _map_of(rows, node)
            if own is None:
                yield f"(12) {node.key} of run {rows.run.id} belongs to no map"
                continue
            if own.node_id not in items:
                items[own.node_id] = _items(own, rows)
            names: dict[str, Any] = {INDEX: node.index}
            if spec.map is not None and spec.map.over is not None:
                names[ITEM] = items[own.node_id].get(node.index)
            scope = ChainMap(names, cast(MutableMapping[str, Any], scope))
        try:
            wanted = resolve(spec.settings, scope, budget=rows.costs.budget())
        except Unresolved as error:
            yield f"(11) {node.key} of run {rows.run.id} started, and its input can't be resolved: {error}"
            continue
        if any(given[name] != wanted.get(name) for name in given):
            yield f"(11) {node.key} of run {rows.run.id} was given {given}, its references select {wanted}"


def _sub_runs(rows: _Rows) -> Iterator[str]:
    """Law 11 of nodes whose sub-run completed once: they have its output."""
    done = {
        node: child
        for node in rows.nodes
        if (child := rows.child_runs.get(node.id)) is not None
        and node.state == child.state == RunState.COMPLETED
    }
    of_children = RunEvent.objects.filter(run__in=list(done.values()), type=RunState.COMPLETED.value)
    ends = Counter(of_children.values_list("run", flat=True))
    for node, child in done.items():
        if ends[child.id] == 1 and stored_output(node, rows.ports) != stored_output(child, rows.ports):
            yield f"(11) {node.key} of run {rows.run.id} has not the output of its sub-run {child.id}"


def _near(rows: _Rows) -> Iterator[str]:
    """The last part of law 11: a job prefers no server but one on which the node that it is near has run."""
    for node in rows.nodes:
        job, spec = rows.jobs.get(node.job_id or ""), rows.spec(node.base)
        if job is None or spec is None or job.near_server is None:
            continue
        near = [one for one in rows.nodes if one.base == spec.options.get("near")]
        jobs = [one.job_id or one.cached_from for one in near if one.index in (None, node.index)]
        if not Attempt.objects.filter(job__in=filter(None, jobs), server=job.near_server).exists():
            yield f"(11) {node.key} of run {rows.run.id} prefers {job.near_server}, and nothing ran there"


def _output(rows: _Rows) -> Iterator[str]:
    """Law 11 of the run itself: its output is what the template selects from the outputs of its nodes."""
    run = rows.run
    if run.state != RunState.COMPLETED or any(job.round > 1 for job in rows.jobs.values()):
        return  # a dead letter that was retried after the end changes no output
    names = {INPUTS: run.inputs, RUN: {"id": run.id, "round": run.round}}
    scope = ChainMap(names, cast(MutableMapping[str, Any], _Outputs(rows)))
    try:
        wanted = resolve(rows.plan.output, scope, budget=rows.costs.budget())
    except Unresolved as error:
        yield f"(11) run {run.id} completed, and its output can't be resolved: {error}"
        return
    if stored_output(run, rows.ports) != wanted:
        yield f"(11) the output of run {run.id} is not what its references select"


def _long(rows: _Rows) -> Iterator[str]:
    """Law 13 of runs: outputs that are artifacts are used by their run, and the store has their bytes."""
    kept = {node.key: node.output_artifact for node in rows.nodes} | {"": rows.run.output_artifact}
    wanted = {artifact_id: key for key, artifact_id in kept.items() if artifact_id is not None}
    if not wanted:
        return
    runs = [rows.run.id, *(child.id for child in rows.child_runs.values())]  # a sub-run's output is its own
    used = set(ArtifactUse.objects.filter(run__in=runs).values_list("artifact_id", flat=True))
    there = Artifact.objects.in_bulk(list(wanted))
    for artifact_id, key in wanted.items():
        place = f"the output of {key or 'run'} {rows.run.id}, the artifact {artifact_id},"
        artifact = there.get(artifact_id)
        if artifact_id not in used:
            yield f"(13) {place} is not used by the run"
        elif artifact is None or artifact.state != Artifact.State.STORED:
            yield f"(13) {place} is not stored"
        else:
            found = rows.ports.artifact_store.find(artifact.key)
            if found is None or found.bytes != artifact.bytes:
                yield f"(13) {place} is not in the store with its {artifact.bytes} bytes"


def _given(rows: _Rows, node: Node) -> Mapping[str, Any] | None:
    """Return the settings that a node was started with; None if it was not, or they were erased."""
    if node.job_id is not None:
        job = rows.jobs.get(node.job_id)
        return None if job is None or is_erased(job.payload) else {"payload": job.payload}
    child = rows.child_runs.get(node.id)
    if child is not None:
        return {**node.settings, "inputs": child.inputs}
    return node.settings or None


def _map_of(rows: _Rows, child: Node) -> MapState | None:
    node = next((one for one in rows.nodes if (one.key, one.round) == (child.base, child.round)), None)
    return None if node is None else rows.maps.get(node.id)


def _items(state: MapState, rows: _Rows) -> dict[int, Any]:
    if (file := rows.files.get(state.node_id)) is not None:
        return items_of(file, range(state.total), rows.ports)
    found: dict[int, Any] = {}
    for chunk in MapChunk.objects.filter(node_id=state.node_id):
        found.update(enumerate(chunk.items, start=chunk.first))
    return found


def _maps(rows: _Rows, drained: bool) -> Iterator[str]:
    """Law 12: a map runs each of its indices once in a round; those that a restart keeps ran before. It has
    failed only while so many items have."""
    for node in rows.nodes:
        state = rows.maps.get(node.id)
        if state is None:
            continue
        place = f"{node.key} of run {rows.run.id}"
        own = rows.children(node.base, node.round, node.round)
        wanted = list(range(state.total)) if state.todo is None else list(state.todo)
        begun = wanted[: state.next_index]
        file = rows.files.get(node.id)
        if file is not None and (not file.is_read or file.items != state.total):
            yield f"(12) {place} has {state.total} items, and {file.items} were read from its file"
        indices = sorted(child.index for child in own if child.index is not None)
        if indices != begun:
            odd = Counter(indices)
            odd.subtract(begun)
            wrong = {index: count for index, count in odd.items() if count}
            yield f"(12) {place} began {len(begun)} items in round {node.round}; too many, too few: {wrong}"
        spec = rows.spec(node.base)
        if node.code == MAP_FAILED and spec is not None and spec.map is not None:
            window = Window(len(wanted), state.total, failed=state.failed)
            if drained and rows.newest[node.key] is node and not window.fails(spec.map.fail_at):
                yield f"(12) {place} failed, and only {state.failed} of its {state.total} items did"
        if node.state == NodeState.COMPLETED and state.next_index != len(wanted):
            yield f"(12) {place} completed with {state.next_index} of {len(wanted)} items"
        counts = defaultdict[str, int](int)
        for child in own:
            counts[_counted(child.state)] += 1
        stored = {"running": state.running, "completed": state.completed, "failed": state.failed}
        if stored != {name: counts[name] for name in stored}:
            yield f"(12) {place} counts {stored}, its items are {dict(counts)}"
        if state.todo is not None:
            kept = set(range(state.total)) - set(state.todo)
            earlier = rows.children(node.base, state.first_round, node.round - 1)
            ran = Counter(child.index for child in earlier if child.state == NodeState.COMPLETED)
            if wrong_kept := [index for index in sorted(kept) if ran[index] != 1]:
                yield f"(12) {place} keeps items {wrong_kept[:5]}, which did not complete once before"
        if node.state == NodeState.COMPLETED and rows.newest[node.key] is node:
            yield from _joined(rows, node, state)


def _joined(rows: _Rows, node: Node, state: MapState) -> Iterator[str]:
    """The output of a map is the list of its items' outputs (law 11 for the nodes after it)."""
    wanted: list[Any] = [None] * state.total
    for child in rows.children(node.base, state.first_round, node.round):
        if child.state == NodeState.COMPLETED and child.index is not None:
            wanted[child.index] = rows.output_of(child)
    jobs = (rows.jobs.get(child.job_id or "") for child in rows.children(node.base, 1, node.round))
    if any(job is not None and is_erased(job.result) for job in jobs):
        return
    try:
        found = rows.output_of(node) or []
    except OverBudget:  # references can't read it
        artifact = Artifact.objects.get(id=node.output_artifact or "")
        found = json.loads(rows.ports.artifact_store.read(artifact.key, 0, artifact.bytes))
    # what was retried or restarted after the map had ended leaves the list as the nodes after it saw it
    retried = {
        child.index
        for child in rows.children(node.base, state.first_round, node.round)
        for work in (rows.jobs.get(child.job_id or ""), rows.child_runs.get(child.id))
        if work is not None and work.round > 1
    }
    if len(found) != len(wanted) or any(
        one != other and not (one is None and index in retried)
        for index, (one, other) in enumerate(zip(found, wanted, strict=True))
    ):
        yield f"(11) the output of {node.key} of run {rows.run.id} is not the list of its items' outputs"


def _counted(state: str) -> str:
    if state not in _FINAL_NODE:
        return "running"
    return "completed" if state in (NodeState.COMPLETED, NodeState.SKIPPED) else "failed"
