"""Starts nodes: the rows of their jobs, sub-runs, maps and waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from pydantic import ValidationError

from artifacts.uses import new_run_use, new_uses
from foundation.database.row_codec import new_row
from foundation.http_api.json_body import field_errors
from foundation.ids import new_id
from gpus.models.model_config import MAX_SECONDS
from jobs.domain.errors import ModelNotAllowed, Refused
from jobs.limits.submit_limits import limits_of, queue_deadline
from jobs.ports import Ports
from jobs.submission.insert import new_job
from jobs.submission.request import Allowed, Submit, SubmitRequest, checked_unless_replay
from workflows.definition.timers import end_of_timer
from workflows.domain.advance import FileItems, NodeMove, NodeStart
from workflows.domain.budget import measure
from workflows.domain.errors import TooManyRuns, TooManyWaits, UnknownWorkflow
from workflows.domain.plan import NodeKind, NodeSpec, Plan
from workflows.domain.states import NodeState
from workflows.domain.values import BadValue, check_choices, check_payload_kind, question_size
from workflows.execution import cache
from workflows.execution.file_maps import FileFault, check_file
from workflows.execution.model_access import may_use
from workflows.execution.near import NearServers
from workflows.execution.open_limits import sub_runs_of, waits_of
from workflows.execution.runs import check_inputs, find_version, new_run
from workflows.execution.scope import completed_children
from workflows.execution.writes import Writes
from workflows.models import MapChunk, MapFile, MapState, Node, Run, Version, Wait, follower_of

CHUNK = 500
"""Items in one row of a map's list."""
TOO_DEEP = "too_deep"
"""Code of a node that can't be started, besides those of `Refused` and `BadValue`."""


class NodeStarter:
    """Starts nodes in one step of a run. left: how many more it may start, `most` in all. plan_of: returns
    the plan of a version. most_payload_bytes: see `AdvancerLimits`."""

    def __init__(
        self,
        run: Run,
        plan: Plan,
        writes: Writes,
        plan_of: Callable[[Version], Plan],
        *,
        ports: Ports,
        now: datetime,
        most: int,
        most_payload_bytes: int,
    ) -> None:
        self.left = most
        self._payload_bytes, self._most_payload_bytes = 0, most_payload_bytes
        self._near, self._handler = NearServers(run, plan), plan.on_failure
        self._run, self._writes, self._plan_of, self._ports, self._now = run, writes, plan_of, ports, now
        self._other_sub_runs: int | None = None
        self._other_waits: int | None = None
        self._versions: dict[tuple[str, int | None], Version | None] = {}

    def new_node(self, node: NodeSpec, *, index: int | None = None) -> Node:
        """Return the row of a node, or of the child of a map, that runs."""
        return new_row(
            Node,
            id=new_id(self._now.timestamp()),
            run_id=self._run.id,
            key=node.key if index is None else f"{node.key}[{index}]",
            base=node.key,
            index=index,
            round=self._run.round,
            kind=node.kind.value,
            state=NodeState.RUNNING.value,
            started_at=self._now,
        )

    def start_static(self, start: NodeStart) -> NodeMove | None:
        """Start a node of the definition; return its end if it can't be started."""
        self.left -= 1
        row = self.new_node(start.node)
        if start.items is not None:
            self._start_map(start.items, row)
        else:
            self.start(start.node, row, start.settings)
        if row.finished_at is None:
            return None
        return NodeMove(row.base, NodeState(row.state), row.code, row.detail, row.output)

    def start(self, node: NodeSpec, row: Node, given: Mapping[str, Any]) -> None:
        """Make the rows of a node that starts. given: its settings. Afterwards the row has its state:
        it may have failed, or completed from the cache."""
        if node.kind is NodeKind.MODEL:
            self._start_job(node, row, given)
            return
        row.settings = dict(given)
        if node.kind is NodeKind.WORKFLOW:
            self._start_run(node, row, given)
        else:
            self._start_wait(node, row, given)

    def fail(self, row: Node, code: str, detail: str) -> None:
        """Write a node that could not be started."""
        row.state, row.finished_at = NodeState.FAILED.value, self._now
        row.code, row.detail = code, detail[:2_000]
        most = settings.DISPATCHER.workflow_question_bytes
        if measure(row.settings, most).count > most:  # it may have failed for their size
            row.settings = {}
        self._writes.new_nodes.append(row)

    def _take_cached(self, row: Node, request: SubmitRequest) -> bool:
        """Complete a node from the cache; False if it has no such result."""
        spec = self._ports.registry.model_spec(request.body.model)
        if spec is None:
            return False
        row.cache_key = cache.key_of(self._run.tenant_id, spec, request.body.payload)
        hit = cache.find(row.cache_key, self._run.tenant_id, self._now)
        if hit is None:
            return False
        row.state, row.finished_at = NodeState.COMPLETED.value, self._now
        row.output, row.cached_from = hit.output, hit.job_id
        for one in hit.artifacts:  # they stay if the run that made them is erased
            self._writes.run_uses[self._run.id, one] = new_run_use(self._run.id, one)
        self._writes.new_nodes.append(row)
        return True

    @property
    def is_full(self) -> bool:
        """Whether the payloads of this step have as many bytes as one transaction should write."""
        return self._payload_bytes >= self._most_payload_bytes

    def sub_runs_left(self) -> int:
        """Return how many more sub-runs the tenant may have: they multiply with each level."""
        most = settings.DISPATCHER.workflow_sub_runs
        if self._other_sub_runs is None:
            self._other_sub_runs = sub_runs_of(self._run.tenant_id)[:most].count()
        return most - self._other_sub_runs - len(self._writes.runs)

    def waits_left(self) -> int:
        """Return how many more waits the tenant's runs may have."""
        most = settings.DISPATCHER.workflow_waits
        if self._other_waits is None:
            self._other_waits = waits_of(self._run.tenant_id)[:most].count()
        return most - self._other_waits - len(self._writes.waits)

    def children_left(self, kind: NodeKind) -> int:
        """Return how many more children of a map may start now."""
        if kind is NodeKind.WORKFLOW:
            return min(self.left, self.sub_runs_left())
        return self.left if kind is NodeKind.MODEL else min(self.left, self.waits_left())

    def _start_map(self, items: list[Any] | int | FileItems, row: Node) -> None:
        if isinstance(items, FileItems):
            self._start_reading(items.artifact, row)
            return
        total = items if isinstance(items, int) else len(items)
        self._writes.new_nodes.append(row)
        self._writes.new_maps.append(self.map_state(row, total))
        if isinstance(items, list):
            self._writes.chunks += [
                MapChunk(node=row, first=first, items=items[first : first + CHUNK])
                for first in range(0, total, CHUNK)
            ]

    def _start_reading(self, artifact_id: str, row: Node) -> None:
        """Start a map over a file, which the next steps read."""
        try:
            check_file(artifact_id, self._run.tenant_id)
        except FileFault as fault:
            self.fail(row, fault.code, str(fault))
            return
        self._writes.new_nodes.append(row)
        self._writes.new_files.append(MapFile(node=row, artifact=artifact_id))
        self._writes.run_uses[self._run.id, artifact_id] = new_run_use(self._run.id, artifact_id)

    def map_state(self, row: Node, total: int) -> MapState:
        """Return the state of a map that starts its first child next. total: items of its list."""
        state = MapState(node=row, total=total, first_round=self._run.round)
        kept_since = self._run.kept_maps.get(row.base)
        if kept_since is not None and not self._had_other_total(row.base, kept_since, total):
            kept = completed_children(self._run, row.base, kept_since)
            state.first_round = kept_since
            done = set(kept.values_list("index", flat=True))
            state.todo = [index for index in range(total) if index not in done]
        return state

    def _had_other_total(self, base: str, since: int, total: int) -> bool:
        """Return True if the list of a restarted map has another length than in an earlier round: its
        children are those of another list."""
        states = MapState.objects.filter(
            node__run=self._run, node__base=base, node__index=None, node__round__gte=since
        )
        return states.exclude(total=total).exists()

    def _start_job(self, node: NodeSpec, row: Node, given: Mapping[str, Any]) -> None:
        run = self._run
        deadline_at = self._deadline_of(node)
        left = None
        if deadline_at is not None:
            left = min(max((deadline_at - self._now).total_seconds(), 0.001), MAX_SECONDS)
        try:
            check_payload_kind(given["payload"])
            body = Submit(
                model=node.options["model"],
                payload=given["payload"],
                priority=run.priority,
                tags=run.tags or None,
                max_retries=node.options.get("max_retries"),
                max_run_seconds=node.options.get("max_run_seconds"),
                deadline_seconds=left,
            )
        except BadValue as error:
            self.fail(row, error.code, str(error))
            return
        except ValidationError as error:  # an option that the limits of jobs do not allow any more
            first = field_errors(error)[0]
            self.fail(row, first.code, f"{first.pointer[1:]}: {first.detail}")
            return
        if not may_use(run, body.model):
            self.fail(
                row, ModelNotAllowed.code, f"the key that started the run may not submit to {body.model!r}"
            )
            return
        may = Allowed(limits_of(run.tenant_id, self._ports).allowed_models, None)
        request = checked_unless_replay(
            SubmitRequest(body), {}, may, self._now, self._ports, tenant_id=run.tenant_id
        )
        if isinstance(request, Refused):
            self.fail(row, request.code, str(request))
            return
        if "cache_seconds" in node.options and self._take_cached(row, request):
            return
        try:
            job = new_job(
                request,
                run.tenant_id,
                self._ports.registry,
                partial(queue_deadline, run.tenant_id, ports=self._ports),
                now=self._now,
                place_us=run.place_us,
                followed_by=follower_of(run.id),
                near_server=self._near.server_for(node, row.index),
            )
        except Refused as refused:
            self.fail(row, refused.code, str(refused))
            return
        row.job_id = job.id
        self._payload_bytes += measure(given["payload"], None).count
        self._writes.jobs.append(job)
        self._writes.uses += new_uses(job.id, request.artifacts)
        self._writes.new_nodes.append(row)

    def _start_run(self, node: NodeSpec, row: Node, given: Mapping[str, Any]) -> None:
        run = self._run
        deepest = settings.DISPATCHER.workflow_depth
        if run.depth >= deepest:
            why = (
                f"sub-workflows may be nested {deepest} levels deep (DISPATCHER_WORKFLOW_DEPTH); start "
                "what is below as a run of its own"
            )
            self.fail(row, TOO_DEEP, why)
            return
        if self.sub_runs_left() <= 0:
            most = settings.DISPATCHER.workflow_sub_runs
            why = (
                f"a tenant may have {most} unfinished sub-runs (DISPATCHER_WORKFLOW_SUB_RUNS); restart "
                "this run when others have ended"
            )
            self.fail(row, TooManyRuns.code, why)
            return
        name, number = node.options["workflow"], node.options.get("version")
        if (name, number) not in self._versions:
            self._versions[name, number] = find_version(run.tenant_id, name, number)
        version = self._versions[name, number]
        if version is None:
            wanted = f"workflow {name}" if number is None else f"version {number} of the workflow {name}"
            self.fail(row, UnknownWorkflow.code, f"there is no {wanted}")
            return
        plan, inputs = self._plan_of(version), given["inputs"]
        try:
            check_inputs(plan.inputs, inputs, self._ports)
        except Refused as refused:
            self.fail(row, refused.code, f"inputs of {name}: {refused}")
            return
        child = new_run(version, plan, inputs, now=self._now)
        child.priority, child.tags, child.place_us = run.priority, run.tags, run.place_us
        child.key_models = run.key_models
        child.deadline_at, child.depth, child.parent_node = self._deadline_of(node), run.depth + 1, row
        self._payload_bytes += measure(inputs, None).count
        self._writes.new_nodes.append(row)
        self._writes.runs.append(child)

    def _deadline_of(self, node: NodeSpec) -> datetime | None:
        """Return the deadline of a node's job or sub-run: that of the run. The node of `on_failure` has none,
        since it also runs after that."""
        is_handler = self._handler is not None and node.key == self._handler.key
        return None if is_handler else self._run.deadline_at

    def _start_wait(self, node: NodeSpec, row: Node, given: Mapping[str, Any]) -> None:
        limits, options = settings.DISPATCHER, {**node.options, **given}
        due_at = None
        try:
            size = question_size(options, limits.workflow_question_bytes)
            if "choose_from" in given:
                check_choices(given["choose_from"], limits.workflow_choices)
            if node.kind is NodeKind.TIMER:
                due_at = end_of_timer(given, self._now, limits.workflow_wait_seconds)
        except BadValue as error:
            self.fail(row, error.code, str(error))
            return
        if (expires := node.options.get("expires_seconds")) is not None:
            due_at = self._now + timedelta(seconds=expires)
        if self.waits_left() <= 0:
            most = limits.workflow_waits
            why = (
                f"the runs of a tenant may have {most} open waits (DISPATCHER_WORKFLOW_WAITS); restart "
                "this run when others have ended"
            )
            self.fail(row, TooManyWaits.code, why)
            return
        self._payload_bytes += size
        self._writes.new_nodes.append(row)
        self._writes.waits.append(
            Wait(
                node=row,
                kind=node.kind.value,
                signal=options.get("name", "") if node.kind is NodeKind.SIGNAL else "",
                options=options,
                due_at=due_at,
            )
        )
