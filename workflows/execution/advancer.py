"""Advances runs: reads the notices of ended nodes, decides by `workflows.domain.advance`, writes the result.

A run is read and decided without a lock. The transaction that writes begins with a compare-and-set of
`Run.steps`: of two advancers of one run, one writes and the other begins anew. It inserts the jobs of new
nodes, and deletes the notices that it took into account, so a crash at any point loses and repeats nothing.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F, Q
from pydantic import ValidationError

from artifacts.models import ArtifactUse
from artifacts.uses import lock_for_use, new_uses
from foundation.database import statements
from foundation.database.connections import write_lock
from foundation.http_api.json_body import read_time
from foundation.ids import new_id
from jobs import transitions
from jobs.domain.errors import DEADLINE_EXCEEDED, PayloadInvalid, Refused
from jobs.limits.submit_limits import limits_of, queue_deadline
from jobs.models import EndNotice, Job
from jobs.ports import Ports
from jobs.submission.insert import new_job
from jobs.submission.request import (
    Allowed,
    Submit,
    SubmitRequest,
    Submitted,
    checked_unless_replay,
    outcome_of,
)
from jobs.submission.submit import push_and_wake
from workflows.definition.body import MAX_SECONDS
from workflows.definition.read import read_definition
from workflows.domain.advance import (
    NodeMove,
    NodeStart,
    RunEnd,
    Steps,
    Window,
    advance,
    children_to_start,
    end_of_map,
)
from workflows.domain.budget import Costs, OverBudget
from workflows.domain.errors import TooManyRuns, UnknownWorkflow
from workflows.domain.plan import INDEX, ITEM, MapSpec, NodeKind, NodeSpec, Plan
from workflows.domain.states import FINAL_NODE_STATES, NodeState, RunState
from workflows.domain.template import Unresolved, resolve
from workflows.execution.cancelling import cancel_nodes
from workflows.execution.runs import check_inputs, find_version, new_run
from workflows.execution.scope import RunScope, completed_children, map_output
from workflows.models import MAX_DEPTH, MapChunk, MapState, Node, Run, RunEvent, Version, Wait, follower_of

log = structlog.get_logger()

NOTICES = 500
"""Most notices that one transaction takes into account."""
STARTS = 200
"""Most nodes that one transaction starts: 200 inserted jobs take about 20 ms."""
CHUNK = 500
"""Items in one row of a map's list."""
TOO_DEEP, NO_CHOICES, INVALID_TIMER = "too_deep", "no_choices", "invalid_timer"
"""Codes of nodes that can't be started, besides those of `Refused`."""


class Overtaken(Exception):
    """Another advancer wrote this run meanwhile."""


class Advancer:
    """Advances the runs of a process. It keeps the plans of versions, which never change."""

    MAX_PLANS = 256

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self._plans: dict[int, Plan] = {}

    def advance(self, run_id: str) -> bool:
        """Advance a run as far as one transaction can. Return True if there may be more to do at once."""
        run = Run.objects.select_related("version").filter(id=run_id).first()
        if run is None or run.state != RunState.RUNNING:
            EndNotice.objects.filter(followed_by=follower_of(run_id)).delete()
            return False
        try:
            return _Advance(run, self.plan_of, self.ports).once()
        except Overtaken:
            return True

    def plan_of(self, version: Version) -> Plan:
        """Return the plan of a version."""
        found = self._plans.get(version.pk)
        if found is None:
            found = read_definition(version.spec)
            if len(self._plans) >= self.MAX_PLANS:
                self._plans = {}
            self._plans[version.pk] = found
        return found


@dataclass
class _Writes:
    """The rows of one transaction."""

    new_nodes: list[Node] = field(default_factory=list)
    ended_nodes: dict[str, Node] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    uses: list[ArtifactUse] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    new_maps: list[MapState] = field(default_factory=list)
    chunks: list[MapChunk] = field(default_factory=list)
    maps: dict[str, MapState] = field(default_factory=dict)
    events: list[RunEvent] = field(default_factory=list)


class _Advance:
    """One step of one run. It reads in its constructor, and decides and writes in `once`."""

    def __init__(self, run: Run, plan_of: Callable[[Version], Plan], ports: Ports) -> None:
        self.run, self.plan_of, self.ports = run, plan_of, ports
        self.plan = plan_of(run.version)
        self.now = ports.clock.now()
        self.ended_static: dict[str, Node] = {}
        self.scope = RunScope(run, self.ended_static)
        self.seen_steps = run.steps
        self.writes = _Writes()
        self.cancelled = run.cancel_requested_at is not None
        self.notices = list(
            EndNotice.objects.filter(followed_by=follower_of(run.id)).order_by("id")[:NOTICES]
        )
        self.maps = {
            state.node.base: state
            for state in MapState.objects.select_related("node").filter(node__run=run, node__finished_at=None)
        }
        self.starts_left = STARTS
        self.other_sub_runs: int | None = None
        limits = settings.DISPATCHER
        self.costs = Costs(limits.workflow_value_bytes, limits.workflow_search_steps)
        self.parent_run_id: str | None = None
        if run.parent_node_id is not None:
            self.parent_run_id = Node.objects.values_list("run_id", flat=True).get(id=run.parent_node_id)

    def once(self) -> bool:
        """Return True if there is more to do at once."""
        ended = self._ends_of_nodes()
        ended += self._move_maps()
        steps = self._decide(ended)
        if steps.end is not None and steps.end.state is RunState.CANCELLED and self._is_overdue():
            steps.end = RunEnd(RunState.FAILED, code=DEADLINE_EXCEEDED, detail="the run's deadline passed")
        has_written = bool(self.notices or steps.moves or self.writes.new_nodes or steps.end)
        if has_written:
            self._write(steps)
            self._after_commit()
        if steps.cancel:
            cancel_nodes(self.run, steps.cancel, self.ports)
        if steps.end is not None or not has_written:
            return False
        return steps.more or len(self.notices) == NOTICES or bool(self.writes.new_maps) or self._maps_wait()

    def _is_overdue(self) -> bool:
        """Return True if the run ends because of its deadline, not because of a request."""
        deadline, requested = self.run.deadline_at, self.run.cancel_requested_at
        return deadline is not None and requested is not None and deadline <= requested

    # -- reading notices -------------------------------------------------------------------------------------

    def _ends_of_nodes(self) -> list[NodeMove]:
        """Return the ends of static nodes; write those of map children to their map."""
        ids = [notice.ended_id for notice in self.notices]
        nodes = Node.objects.filter(run=self.run).filter(
            Q(job_id__in=ids) | Q(id__in=ids) | Q(child_runs__id__in=ids)
        )
        by_id: dict[str, Node] = {}
        for node in nodes.annotate(child_run_id=F("child_runs__id")):
            by_id[node.id] = node
            by_id[node.job_id or node.child_run_id or node.id] = node  # type: ignore[attr-defined]
        bad = [one.ended_id for one in self.notices if one.state != NodeState.COMPLETED]
        self.bad_jobs = Job.objects.only("error_code", "error_message").in_bulk(bad)
        self.child_runs = Run.objects.in_bulk(ids, field_name="id")
        self.waits = Wait.objects.in_bulk(ids)
        ends: list[NodeMove] = []
        for notice in self.notices:
            found = by_id.get(notice.ended_id)
            if found is None or found.finished_at is not None or notice.state not in FINAL_NODE_STATES:
                continue  # of an earlier round, told twice, or a dead letter that an operator retried
            end = self._end_row(found, NodeState(notice.state))
            if found.index is None:
                ends.append(end)
            else:
                self._count_child(found)
        return ends

    def _end_row(self, node: Node, state: NodeState) -> NodeMove:
        node.state, node.finished_at = state.value, self.now
        if state is not NodeState.COMPLETED and node.job_id is not None:
            job = self.bad_jobs[node.job_id]
            node.code, node.detail = job.error_code, job.error_message[:2_000]
        elif node.kind == NodeKind.WORKFLOW:
            child = self.child_runs[node.child_run_id]  # type: ignore[attr-defined]
            node.output, node.code, node.detail = child.output, child.error_code, child.error_message
        elif (wait := self.waits.get(node.id)) is not None:
            node.output = wait.answer
        self._note_ended(node)
        return NodeMove(node.base, state, node.code, node.detail, node.output)

    def _note_ended(self, node: Node) -> None:
        self.writes.ended_nodes[node.id] = node
        if node.index is None:
            self.ended_static[node.base] = node

    def _count_child(self, child: Node) -> None:
        state = self.maps.get(child.base)
        if state is None:
            return
        state.running -= 1
        if child.state in (NodeState.COMPLETED, NodeState.SKIPPED):
            state.completed += 1
        else:
            state.failed += 1
        self.writes.maps[state.node_id] = state

    # -- maps ------------------------------------------------------------------------------------------------

    def _move_maps(self) -> list[NodeMove]:
        """Start the next children of each open map; return the ends of maps."""
        ends = []
        for base, state in self.maps.items():
            spec = self.plan.nodes[base].map
            assert spec is not None
            if not self.cancelled and self.run.paused_at is None:
                self._fill(self.plan.nodes[base], spec, state)
            end = end_of_map(spec, _window(state))
            if end is None and self.cancelled and not state.running:
                end = NodeState.CANCELLED
            if end is not None:
                ends.append(self._end_map(state, end))
        return ends

    def _fill(self, node: NodeSpec, spec: MapSpec, state: MapState) -> None:
        most = self.starts_left
        if node.kind is NodeKind.WORKFLOW:
            # with children under way the others wait for their ends; without any, the next one fails
            most = min(most, max(self._sub_runs_left(), 0 if state.running else 1))
        places = children_to_start(spec, _window(state), most)
        if not places:
            return
        indices = places if state.todo is None else state.todo[places.start : places.stop]
        items = _items(state, indices)
        for index in indices:
            if self.costs.are_spent:
                self.starts_left = 0
                break
            self.starts_left -= 1
            names: dict[str, Any] = {INDEX: index}
            if spec.over is not None:
                names[ITEM] = items[index]
            row = self._row(node, index=index)
            try:
                scope = ChainMap(names, cast(MutableMapping[str, Any], self.scope))
                given = resolve(node.settings, scope, budget=self.costs.budget())
                started = self._start(node, row, given)
            except Unresolved as error:
                started = self._failed(row, error.code, str(error))
            state.next_index += 1
            if started:
                state.running += 1
            else:
                state.failed += 1
        self.writes.maps[state.node_id] = state

    def _end_map(self, state: MapState, end: NodeState) -> NodeMove:
        node = state.node
        node.state, node.finished_at = end.value, self.now
        if end is NodeState.COMPLETED:
            # children that end in this very transaction are not in the database yet
            children = [
                child
                for child in self.writes.ended_nodes.values()
                if child.base == node.base and child.index is not None
            ]
            try:
                node.output = map_output(self.run, state, children, self.costs.budget())
            except OverBudget as error:
                end, node.code = NodeState.FAILED, error.code
                node.detail = f"the list of the map's outputs: {error}"
                node.state = end.value
        elif end is NodeState.FAILED:
            node.code, node.detail = "map_failed", f"{state.failed} of {state.total} items failed"
        self._note_ended(node)
        return NodeMove(node.base, end, node.code, node.detail, node.output)

    def _maps_wait(self) -> bool:
        """Return True if a map has room for children that this transaction could not start."""
        return self.starts_left <= 0 and any(
            children_to_start(spec, _window(state), 1)
            for base, state in self.maps.items()
            if (spec := self.plan.nodes[base].map) is not None
        )

    # -- starting nodes --------------------------------------------------------------------------------------

    def _decide(self, ended: list[NodeMove]) -> Steps:
        """Decide what follows these ends, and start what is to start. A node that can't be started fails, so
        it is decided again."""
        states = {key: NodeState(state) for key, state in self.run.node_states.items()}
        decided = self._advance(states, ended)
        steps = decided
        while True:
            self.writes.new_nodes += self._rows_of(decided.moves)
            failed = [end for start in decided.starts if (end := self._start_static(start)) is not None]
            if not failed:
                return steps
            decided = self._advance(decided.states, failed)
            steps = replace(
                decided, moves=[*steps.moves, *decided.moves], starts=[*steps.starts, *decided.starts]
            )

    def _advance(self, states: Mapping[str, NodeState], ended: Sequence[NodeMove]) -> Steps:
        scope = ChainMap(
            {end.key: end.output for end in ended if end.output is not None},
            cast(MutableMapping[str, Any], self.scope),
        )
        return advance(
            self.plan,
            states,
            ended,
            scope,
            cancelled=self.cancelled,
            paused=self.run.paused_at is not None,
            most_starts=max(self.starts_left, 0),
            most_items=settings.DISPATCHER.workflow_map_items,
            costs=self.costs,
        )

    def _rows_of(self, moves: Sequence[NodeMove]) -> list[Node]:
        """Return new rows for nodes that ended without having started."""
        known = {node.base for node in self.writes.ended_nodes.values() if node.index is None}
        known |= {node.base for node in self.writes.new_nodes if node.index is None}
        rows = []
        for move in moves:
            if move.key in known:
                continue
            row = self._row(self._spec(move.key))
            row.state, row.finished_at, row.output = move.state.value, self.now, move.output
            row.code, row.detail = move.code, move.detail
            rows.append(row)
        return rows

    def _spec(self, key: str) -> NodeSpec:
        handler = self.plan.on_failure
        return handler if handler is not None and handler.key == key else self.plan.nodes[key]

    def _row(self, node: NodeSpec, *, index: int | None = None) -> Node:
        key = node.key if index is None else f"{node.key}[{index}]"
        return Node(
            id=new_id(self.now.timestamp()),
            run=self.run,
            key=key,
            base=node.key,
            index=index,
            round=self.run.round,
            kind=node.kind.value,
            state=NodeState.RUNNING.value,
            started_at=self.now,
        )

    def _start_static(self, start: NodeStart) -> NodeMove | None:
        """Start a node; return its end if it can't be started."""
        self.starts_left -= 1
        row = self._row(start.node)
        if start.items is not None:
            self._start_map(start, row)
            return None
        if self._start(start.node, row, start.settings):
            return None
        return NodeMove(row.base, NodeState.FAILED, row.code, row.detail)

    def _start_map(self, start: NodeStart, row: Node) -> None:
        items = start.items
        total = items if isinstance(items, int) else len(items or ())
        state = MapState(node=row, total=total, first_round=self.run.round)
        kept_since = self.run.kept_maps.get(row.base)
        if kept_since is not None:
            kept = completed_children(self.run, row.base, kept_since)
            state.first_round = kept_since
            done = set(kept.values_list("index", flat=True))
            state.todo = [index for index in range(total) if index not in done]
        self.writes.new_nodes.append(row)
        self.writes.new_maps.append(state)
        if isinstance(items, list):
            self.writes.chunks += [
                MapChunk(node=row, first=first, items=items[first : first + CHUNK])
                for first in range(0, total, CHUNK)
            ]

    def _start(self, node: NodeSpec, row: Node, given: Mapping[str, Any]) -> bool:
        """Make the rows of a node that starts. Return False if it failed at once."""
        if node.kind is NodeKind.MODEL:
            return self._start_job(node, row, given)
        row.settings = dict(given)
        if node.kind is NodeKind.WORKFLOW:
            return self._start_run(node, row, given)
        if "choose_from" in given and not (isinstance(given["choose_from"], list) and given["choose_from"]):
            return self._failed(
                row, NO_CHOICES, "choose_from is not a list with a choice: no answer would be valid"
            )
        due_at = None
        if node.kind is NodeKind.TIMER:
            due_at = _timer(given, self.now)
            if due_at is None:
                why = (
                    "a timer takes seconds (a number from 0, at most 366 days) or until (a time with a zone)"
                )
                return self._failed(row, INVALID_TIMER, why)
        elif (expires := node.options.get("expires_seconds")) is not None:
            due_at = self.now + timedelta(seconds=expires)
        self.writes.new_nodes.append(row)
        self.writes.waits.append(self._wait(node, row, given, due_at))
        return True

    def _start_job(self, node: NodeSpec, row: Node, given: Mapping[str, Any]) -> bool:
        run = self.run
        left = None if run.deadline_at is None else max((run.deadline_at - self.now).total_seconds(), 0.001)
        try:
            body = Submit(
                model=node.options["model"],
                payload=given["payload"],
                priority=run.priority,
                tags=run.tags or None,
                max_retries=node.options.get("max_retries"),
                max_run_seconds=node.options.get("max_run_seconds"),
                deadline_seconds=left,
            )
        except ValidationError:
            return self._failed(row, PayloadInvalid.code, "a payload is an object")
        may = Allowed(limits_of(run.tenant_id, self.ports).allowed_models, None)
        request = checked_unless_replay(
            SubmitRequest(body), {}, may, self.now, self.ports, tenant_id=run.tenant_id
        )
        if isinstance(request, Refused):
            return self._failed(row, request.code, str(request))
        try:
            job = new_job(
                request,
                run.tenant_id,
                self.ports.registry,
                partial(queue_deadline, run.tenant_id, ports=self.ports),
                now=self.now,
                place_us=run.place_us,
                followed_by=follower_of(run.id),
            )
        except Refused as refused:
            return self._failed(row, refused.code, str(refused))
        row.job_id = job.id
        self.writes.jobs.append(job)
        self.writes.uses += new_uses(job.id, request.artifacts)
        self.writes.new_nodes.append(row)
        return True

    def _start_run(self, node: NodeSpec, row: Node, given: Mapping[str, Any]) -> bool:
        run = self.run
        if run.depth >= MAX_DEPTH:
            return self._failed(row, TOO_DEEP, f"sub-workflows may be nested {MAX_DEPTH} levels deep")
        if self._sub_runs_left() <= 0:
            most = settings.DISPATCHER.workflow_sub_runs
            return self._failed(row, TooManyRuns.code, f"a tenant may have {most} unfinished sub-runs")
        name, number = node.options["workflow"], node.options.get("version")
        version = find_version(run.tenant_id, name, number)
        if version is None:
            wanted = f"workflow {name}" if number is None else f"version {number} of the workflow {name}"
            return self._failed(row, UnknownWorkflow.code, f"there is no {wanted}")
        plan, inputs = self.plan_of(version), given["inputs"]
        try:
            check_inputs(plan.inputs, inputs, self.ports)
        except Refused as refused:
            return self._failed(row, refused.code, f"inputs of {name}: {refused}")
        child = new_run(version, plan, inputs, now=self.now)
        child.priority, child.tags, child.place_us = run.priority, run.tags, run.place_us
        child.deadline_at, child.depth, child.parent_node = run.deadline_at, run.depth + 1, row
        self.writes.new_nodes.append(row)
        self.writes.runs.append(child)
        return True

    def _sub_runs_left(self) -> int:
        """Return how many more sub-runs the tenant may have: they multiply with each level."""
        if self.other_sub_runs is None:
            most = settings.DISPATCHER.workflow_sub_runs
            unfinished = Run.objects.filter(tenant_id=self.run.tenant_id, finished_at=None, depth__gt=0)
            self.other_sub_runs = unfinished.order_by()[:most].count()
        return settings.DISPATCHER.workflow_sub_runs - self.other_sub_runs - len(self.writes.runs)

    def _wait(self, node: NodeSpec, row: Node, given: Mapping[str, Any], due_at: datetime | None) -> Wait:
        options = {**node.options, **given}
        return Wait(
            node=row,
            kind=node.kind.value,
            signal=options.get("name", "") if node.kind is NodeKind.SIGNAL else "",
            options=options,
            due_at=due_at,
        )

    def _failed(self, row: Node, code: str, detail: str) -> bool:
        row.state, row.finished_at, row.code, row.detail = (
            NodeState.FAILED.value,
            self.now,
            code,
            detail[:2_000],
        )
        self.writes.new_nodes.append(row)
        return False

    # -- writing ---------------------------------------------------------------------------------------------

    def _write(self, steps: Steps) -> None:
        run, writes = self.run, self.writes
        changes: dict[str, Any] = {"node_states": {key: state.value for key, state in steps.states.items()}}
        self._log(steps)
        if steps.end is not None:
            changes |= {
                "state": steps.end.state.value,
                "output": steps.end.output,
                "error_code": steps.end.code,
                "error_message": steps.end.detail,
                "error_node": steps.end.node,
                "finished_at": self.now,
            }
        with write_lock(max(len(writes.jobs), 1)), transaction.atomic():
            mine = Run.objects.filter(id=run.id, steps=self.seen_steps, state=RunState.RUNNING.value)
            if not mine.update(steps=F("steps") + 1, event_seq=run.event_seq, **changes):
                raise Overtaken
            Node.objects.bulk_create(writes.new_nodes)
            Node.objects.bulk_update(
                writes.ended_nodes.values(), ["state", "finished_at", "output", "code", "detail"]
            )
            MapState.objects.bulk_create(writes.new_maps)
            MapChunk.objects.bulk_create(writes.chunks)
            MapState.objects.bulk_update(
                writes.maps.values(), ["next_index", "running", "completed", "failed"]
            )
            Wait.objects.bulk_create(writes.waits)
            if writes.uses:
                self._use_artifacts()
            if writes.jobs:
                statements.write(transitions.new_jobs(writes.jobs, self.now))
            Run.objects.bulk_create(writes.runs)
            RunEvent.objects.bulk_create(writes.events)
            EndNotice.objects.filter(id__in=[notice.id for notice in self.notices]).delete()
            if steps.end is not None and self.parent_run_id is not None:
                EndNotice.objects.create(
                    followed_by=follower_of(self.parent_run_id),
                    ended_id=run.id,
                    state=steps.end.state.value,
                    at=self.now,
                )

    def _use_artifacts(self) -> None:
        """Write the uses of artifacts by new jobs. If one was removed since its check, the step begins anew,
        and fails the node."""
        wanted = {use.artifact_id for use in self.writes.uses}
        if lock_for_use(wanted) != wanted:
            raise Overtaken
        statements.insert_all(self.writes.uses)

    def _log(self, steps: Steps) -> None:
        """Write the events of the static nodes and of the run."""
        rows: list[tuple[str, dict[str, Any]]] = []
        for move in steps.moves:
            data = {"node": move.key, "state": move.state.value}
            if move.code:
                data |= {"code": move.code, "detail": move.detail[:500]}
            rows.append(("node_ended", data))
        ended = {move.key for move in steps.moves}
        started = [start.node.key for start in steps.starts if start.node.key not in ended]
        rows += [("node_started", {"node": key}) for key in started]
        if steps.end is not None:
            end: dict[str, Any] = {"status": steps.end.state.value}
            if steps.end.code:
                end["error"] = {"code": steps.end.code, "message": steps.end.detail}
            rows.append((steps.end.state.value, end))
        for kind, data in rows:
            self.run.event_seq += 1
            self.writes.events.append(
                RunEvent(run=self.run, seq=self.run.event_seq, type=kind, at=self.now, data=data)
            )

    def _after_commit(self) -> None:
        items = [Submitted(job, outcome_of(job), None, replayed=False) for job in self.writes.jobs]
        if items:
            push_and_wake(items, self.ports)
            self.ports.announce([job.id for job in self.writes.jobs])
        followers = [follower_of(child.id) for child in self.writes.runs]
        if self.parent_run_id is not None:
            followers.append(follower_of(self.parent_run_id))
        if followers:
            self.ports.wake_followers(followers)


def _window(state: MapState) -> Window:
    total = state.total if state.todo is None else len(state.todo)
    return Window(total, state.total, state.next_index, state.running, state.completed, state.failed)


def _items(state: MapState, indices: Sequence[int]) -> dict[int, Any]:
    """Return the items of a map at these places, which ascend."""
    found: dict[int, Any] = {}
    first = indices[0] - indices[0] % CHUNK
    for chunk in MapChunk.objects.filter(node_id=state.node_id, first__gte=first, first__lte=indices[-1]):
        found.update(enumerate(chunk.items, start=chunk.first))
    return found


def _timer(given: Mapping[str, Any], now: datetime) -> datetime | None:
    """Return when a timer ends; None if its time is not one."""
    seconds, until = given.get("seconds"), given.get("until")
    if seconds is None:
        return read_time(until) if isinstance(until, str) else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_SECONDS:
        return None
    return now + timedelta(seconds=seconds)
