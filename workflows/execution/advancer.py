"""Advances runs: reads the notices of ended nodes, decides by `workflows.domain.advance`, writes the result.

A run is read and decided without a lock. The transaction that writes begins with a compare-and-set of
`Run.steps`: of two advancers of one run, one writes and the other begins anew. It inserts the jobs of new
nodes, and deletes the notices that it took into account, so a crash at any point loses and repeats nothing.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Any, cast

import structlog
from django.conf import settings

from artifacts.uses import new_run_use
from foundation.database import statements
from foundation.database.connections import pipelined_transaction, write_lock
from foundation.database.row_codec import new_row
from foundation.database.statements import Members
from jobs.models import EndNotice
from jobs.ports import Ports
from jobs.submission.request import Submitted, outcome_of
from jobs.submission.submit import push_and_wake
from workflows.definition.read import read_definition
from workflows.domain.advance import NodeMove, RunEnd, Steps, advance, failed_node
from workflows.domain.budget import Costs
from workflows.domain.plan import NodeKind, NodeSpec, Plan, RunningOnFailure
from workflows.domain.states import FINAL_NODE_STATES, NodeState, RunState
from workflows.execution import cache, reads
from workflows.execution.callbacks import callback_for
from workflows.execution.cancelling import cancel_nodes
from workflows.execution.counts import RunCounts
from workflows.execution.failed_steps import (
    end_of_cancelled,
    is_defect,
    is_paused,
    is_timed_out,
    note_failed_step,
)
from workflows.execution.forced_ends import end_cancelled
from workflows.execution.long_outputs import is_stored, keep_long
from workflows.execution.notices import delete_of_ended, due_notice
from workflows.execution.open_limits import are_kept
from workflows.execution.open_maps import OpenMaps
from workflows.execution.reads import NOTICES, EndedNodes
from workflows.execution.reasons import reason_of
from workflows.execution.retried import end_postponed, is_retried, retried_among, take_retried
from workflows.execution.scope import RunScope
from workflows.execution.starts import NodeStarter
from workflows.execution.writes import Overtaken, Writes
from workflows.models import Node, Run, RunEvent, Version, follower_of, metric_label

log = structlog.get_logger()

_NODE_STATES = {state.value: state for state in NodeState}


@dataclass(frozen=True, slots=True)
class AdvancerLimits:
    """Limits of one transaction.

    starts: nodes; 200 inserted jobs take about 20 ms. payload_bytes: payloads, inputs and questions of the
    children of maps, about; the last one may exceed it. decide_seconds: after so long, the other runs are
    left to the next one. members: changed states that are written alone; SQLite sets members one by one, each
    by a search."""

    starts: int = 200
    payload_bytes: int = 16 * 1024 * 1024
    decide_seconds: float = 0.05
    members: int = 16


DEFAULT_LIMITS = AdvancerLimits()


class Advancer:
    """Advances the runs of a process. It keeps the plans of versions, which never change."""

    MAX_PLANS = 256

    def __init__(self, ports: Ports, limits: AdvancerLimits = DEFAULT_LIMITS) -> None:
        self.ports, self.limits = ports, limits
        self.counts = RunCounts(ports.after)
        self._plans: dict[int, Plan] = {}
        self._names: dict[int, str] = {}

    def advance(self, run_id: str) -> bool:
        """Advance a run as far as one transaction can. Return True if there may be more to do at once."""
        return self.advance_together([run_id])[run_id]

    def advance_together(self, run_ids: Sequence[str]) -> Mapping[str, bool]:
        """Advance runs in one transaction, which starts at most `limits.starts` nodes. Return for each run
        whether there may be more to do at once.

        run_ids: in the order in which they are decided. If another advancer wrote one of several runs
        meanwhile, each is advanced in a transaction of its own.
        """
        try:
            return self._advance_together(run_ids)
        except Exception as error:
            if not is_defect(error):
                raise
            if len(run_ids) == 1:
                note_failed_step(run_ids[0], error, self.ports)
                return dict.fromkeys(run_ids, False)
        return {run_id: self.advance(run_id) for run_id in run_ids}  # one of them raises

    def _advance_together(self, run_ids: Sequence[str]) -> Mapping[str, bool]:
        began = self.ports.clock.monotonic()
        more = dict.fromkeys(run_ids, False)
        found = {run.id: run for run in reads.runs_to_advance(run_ids) if run.state == RunState.RUNNING}
        if over := more.keys() - found.keys():
            more |= {run_id: take_retried(run_id, self.ports) for run_id in retried_among(over)}
            delete_of_ended(over)
        now = self.ports.clock.now()
        running = [found[run_id] for run_id in more if run_id in found and not is_paused(found[run_id], now)]
        steps, left = self._decide(running)
        more |= dict.fromkeys(left, True)
        if retried := [step for step in steps if step.has_retried]:
            more |= {step.run.id: take_retried(step.run.id, self.ports) or True for step in retried}
            steps = [step for step in steps if step not in retried]
        written = [step for step in steps if step.has_written]
        try:
            self._write(written)
        except Overtaken:
            if len(running) == 1:
                return {**more, running[0].id: True}
            return {**more, **{run.id: self.advance(run.id) for run in running}}
        self._after_commit(written)
        for step in steps:
            if step.cancel:
                cancel_nodes(step.run, step.cancel, self.ports)
            more[step.run.id] = step.is_due
        self._count(written, self.ports.clock.monotonic() - began)
        return more

    def _decide(self, runs: Sequence[Run]) -> tuple[list[_Advance], list[str]]:
        """Decide a step of each run, in this order, for `limits.decide_seconds`: the first ones do not wait
        for the long steps of others. Return the steps, and the ids of the runs that it came to no more. A run
        whose step raises is left out."""
        if not runs:
            return [], []
        notices: dict[str, list[EndNotice]] = {follower_of(run.id): [] for run in runs}
        found = reads.notices_among(list(notices))
        for notice in found:
            notices[notice.followed_by].append(notice)
        steps: list[_Advance] = []
        until = self.ports.clock.monotonic() + self.limits.decide_seconds
        for place, run in enumerate(runs):
            if steps and self.ports.clock.monotonic() > until:
                return steps, [one.id for one in runs[place:]]
            own = notices[follower_of(run.id)]
            starts = self.limits.starts - sum(len(one.writes.new_nodes) for one in steps)
            try:
                step = _Advance(run, self, own, starts=starts)
                step.decide(all_read=len(found) < NOTICES)
            except Exception as error:
                if not is_defect(error):
                    raise
                note_failed_step(run.id, error, self.ports)
            else:
                steps.append(step)
        return steps, []

    def _write(self, steps: Sequence[_Advance]) -> None:
        """Write steps in one transaction. Raises Overtaken."""
        if not steps:
            return
        writes = Writes.merged([step.writes for step in steps])
        rows = max(len(writes.jobs), len(steps))
        with write_lock(rows), pipelined_transaction():
            for step in sorted(steps, key=lambda step: step.run.id):  # one order of locks
                run = step.run
                if not statements.compare_and_set(
                    Run, step.changes, id=run.id, steps=step.seen_steps, state=RunState.RUNNING.value
                ):
                    raise Overtaken
            if not are_kept((step.run.tenant_id, step.writes) for step in steps):
                raise Overtaken  # by other runs of the tenant: decided again, a node fails or its map waits
            writes.write(steps[0].now)
            statements.delete_all(EndNotice, [notice.id for step in steps for notice in step.notices])

    def _after_commit(self, steps: Sequence[_Advance]) -> None:
        if not steps:
            return
        jobs = [job for step in steps for job in step.writes.jobs]
        if jobs:
            push_and_wake([Submitted(job, outcome_of(job), None, replayed=False) for job in jobs], self.ports)
        self.ports.announce([*(job.id for job in jobs), *(step.run.id for step in steps)])
        if callbacks := [one.id for step in steps for one in step.writes.callbacks]:
            self.ports.wake_callbacks(callbacks)
        followers = [follower_of(child.id) for step in steps for child in step.writes.runs]
        followers += [follower_of(step.parent_run_id) for step in steps if step.parent_run_id is not None]
        if over := [step.run.id for step in steps if step.end is not None]:
            followers += end_postponed(over)
        if followers:
            self.ports.wake_followers(followers)

    def _count(self, steps: Sequence[_Advance], seconds: float) -> None:
        if not steps:
            return
        nodes = [(*step.writes.ended_nodes.values(), *step.writes.new_nodes) for step in steps]
        self.counts.count_step(seconds, chain.from_iterable(nodes))
        for step in steps:
            if step.end is not None:
                self._count_end(step.run, step.end, step.now)

    def _count_end(self, run: Run, end: RunEnd, now: datetime) -> None:
        took = (now - run.created_at).total_seconds()
        self.counts.count_run(self._name_of(run.version_id), end.state.value, took)

    def end_cancelled(self, run_id: str) -> None:
        """End a cancelled run whose step raises, once nothing of it is under way."""
        if (ended := end_cancelled(run_id, self.ports)) is not None:
            self._count_end(*ended, self.ports.clock.now())

    def _name_of(self, version_id: int) -> str:
        """Return the name of a version's workflow in metrics."""
        if version_id not in self._names:
            names = Version.objects.filter(id=version_id).values_list("workflow__name", flat=True)
            self._names[version_id] = metric_label(names.first() or "")
        return self._names[version_id]

    def plan_of(self, version: Version) -> Plan:
        """Return the plan of a version."""
        return self.plan(version.pk, lambda: version.spec)

    def plan(self, version_id: int, spec: Callable[[], Any] | None = None) -> Plan:
        """Return the plan of a version. spec: returns its definition; None: read it."""
        found = self._plans.get(version_id)
        if found is None:
            read = spec or (lambda: Version.objects.values_list("spec", flat=True).get(id=version_id))
            found = read_definition(read())
            if len(self._plans) >= self.MAX_PLANS:
                self._plans = {}
            self._plans[version_id] = found
        return found


class _Advance:
    """One step of one run, which it decides. notices: those that it takes into account. starts: most nodes
    that it may start.

    changes: of the run's row. output_artifact: of its output, if that is too long for it. cancel: nodes to
    cancel after the commit. is_due: the run may go on at once. has_retried: a notice is the success of a
    retried job whose node has ended.
    """

    def __init__(self, run: Run, advancer: Advancer, notices: list[EndNotice], *, starts: int) -> None:
        self.run, self.ports, self.limits = run, advancer.ports, advancer.limits
        self.plan = advancer.plan(run.version_id)
        self.now = self.ports.clock.now()
        self.ended_static: dict[str, Node] = {}
        self.scope = RunScope(run, self.ended_static, advancer.ports)
        self.seen_steps = run.steps
        self.writes = Writes()
        self.passes_deadline = _passes_deadline(run, self.now)
        if self.passes_deadline:  # as the sweep would note: else a job that its deadline ended fails the run
            run.cancel_requested_at = run.deadline_at
        self.timed_out = end_of_cancelled(run) if is_timed_out(run) else None
        self.cancelled = run.cancel_requested_at is not None and self.timed_out is None
        self.notices = notices
        limits = settings.DISPATCHER
        self.costs = Costs(limits.workflow_value_bytes, limits.workflow_search_steps)
        self.starter = NodeStarter(
            run,
            self.plan,
            self.writes,
            advancer.plan_of,
            ports=self.ports,
            now=self.now,
            most=max(starts, 0),
            most_payload_bytes=self.limits.payload_bytes,
        )
        self.starts = self.starter.left
        self.maps = OpenMaps(
            run,
            self.plan,
            starter=self.starter,
            writes=self.writes,
            scope=self.scope,
            costs=self.costs,
            ports=self.ports,
            now=self.now,
        )
        self.end: RunEnd | None = None
        self.output_artifact: str | None = None
        self.has_written = self.is_due = self.has_retried = False
        self.cancel: tuple[str, ...] = ()
        self.changes: dict[str, Any] = {}
        self.parent_run_id: str | None = None
        if run.parent_node_id is not None:
            self.parent_run_id = reads.run_of_node.first(id=run.parent_node_id)

    def decide(self, *, all_read: bool) -> None:
        """Decide what the step writes. all_read: the run has no further notices."""
        ended = self._ends_of_nodes()
        may_start = self._move_maps(ended) and self.run.paused_at is None
        if may_start:
            self._note_maps(self.maps.fill(), ended)
        steps = self._decide(ended)
        if steps.end is not None and steps.end.state is RunState.CANCELLED:
            steps.end = end_of_cancelled(self.run)
        self.end, self.cancel = steps.end, steps.cancel
        self.has_written = bool(
            self.notices or steps.moves or self.writes.new_nodes or self.writes.files or steps.end
        )
        more = steps.end is None and (
            steps.more
            or bool(self.writes.new_maps or self.writes.new_files)
            or (may_start and self.maps.wait())
        )
        if self.has_written:
            self._keep_long_outputs()
            self._prepare(steps, more)
        has_waited = self.starts < self.limits.starts  # for other runs of the transaction
        self.is_due = (self.has_written or has_waited) and steps.end is None and (more or not all_read)

    def _move_maps(self, ended: list[NodeMove]) -> bool:
        """End maps, and add these ends. Return True if further children may start: neither was the run
        cancelled, nor does a failure cancel the rest."""
        is_cancelled = self.cancelled or self.timed_out is not None or self._cancels_rest(ended)
        self._note_maps(self.maps.close(cancelled=is_cancelled), ended)
        if not is_cancelled and self._cancels_rest(ended):
            self._note_maps(self.maps.close(cancelled=True), ended)
            return False
        return not is_cancelled

    def _cancels_rest(self, ended: Sequence[NodeMove]) -> bool:
        """Return True if a node has failed for which the others are cancelled. ended: in this step."""
        if self.plan.running_on_failure is not RunningOnFailure.CANCEL or not self.plan.has_maps:
            return False
        return failed_node(self.plan, self._states() | {end.key: end.state for end in ended}) is not None

    def _note_maps(self, maps: Iterable[tuple[Node, NodeMove]], ended: list[NodeMove]) -> None:
        for node, end in maps:
            self._note_ended(node)
            ended.append(end)

    def _states(self) -> dict[str, NodeState]:
        """Return the states of the nodes before this step."""
        return {key: _NODE_STATES[state] for key, state in self.run.node_states.items()}

    # -- reading notices -------------------------------------------------------------------------------------

    def _ends_of_nodes(self) -> list[NodeMove]:
        """Return the ends of static nodes; write those of map children to their map."""
        if not self.notices:
            return []
        nodes = EndedNodes(self.run, self.notices)
        ends: list[NodeMove] = []
        newest = {notice.ended_id: notice for notice in self.notices}  # a dead letter may run again already
        for notice in newest.values():
            found = nodes.by_ended_id.get(notice.ended_id)
            if found is None or found.finished_at is not None:
                self.has_retried = self.has_retried or (found is not None and is_retried(notice))
                continue  # of an earlier round, sent twice, or the success of a retried dead letter
            if notice.state not in FINAL_NODE_STATES or nodes.runs_again(found):
                continue
            end = self._end_row(found, NodeState(notice.state), nodes)
            if found.index is None:
                ends.append(end)
            else:
                self.maps.count_end(found)
        return ends

    def _end_row(self, node: Node, state: NodeState, nodes: EndedNodes) -> NodeMove:
        node.state, node.finished_at, node.output = state.value, self.now, None
        if state is not NodeState.COMPLETED and node.job_id is not None:
            code, message = nodes.errors[node.job_id]
            node.code, node.detail = code, message[:2_000]
        elif node.kind == NodeKind.WORKFLOW:
            child = nodes.child_runs[node.id]
            node.output, node.output_artifact = child.output, child.output_artifact
            if (one := child.output_artifact) is not None and is_stored(one):
                self.writes.run_uses[self.run.id, one] = new_run_use(self.run.id, one)
            node.code, node.detail = child.error_code, child.error_message
        elif node.id in nodes.answers:
            node.output = nodes.answers[node.id]
        elif node.cache_key is not None and node.job_id is not None:
            seconds = self._spec(node.base).options.get("cache_seconds", 0.0)
            self.writes.cached[node.cache_key] = cache.entry(
                node.cache_key, self.run.tenant_id, node.job_id, seconds, self.now
            )
        self._note_ended(node)
        return NodeMove(node.base, state, node.code, node.detail, node.output)

    def _note_ended(self, node: Node) -> None:
        self.writes.ended_nodes[node.id] = node
        if node.index is None:
            self.ended_static[node.base] = node

    def _note_unwritten(self, ends: Sequence[NodeMove]) -> None:
        """Let references see the outputs of nodes that ended as they started."""
        keys = {end.key for end in ends}
        self.ended_static |= {
            node.base: node for node in self.writes.new_nodes if node.index is None and node.base in keys
        }

    # -- deciding --------------------------------------------------------------------------------------------

    def _decide(self, ended: list[NodeMove]) -> Steps:
        """Decide what follows these ends, and start what is to start. A node that can't be started fails, and
        one with a cached result completes at once, so it is decided again."""
        states = self._states()
        # otherwise a further node may be due: the run begins or goes on, or an earlier step left nodes to do
        is_plain = bool(self.notices) and all(notice.ended_id != self.run.id for notice in self.notices)
        only_after_ended = self.seen_steps > 0 and is_plain
        decided = self._advance(states, ended, only_after_ended=only_after_ended)
        steps = decided
        while True:
            self.writes.new_nodes += self._rows_of(decided.moves)
            at_once = [
                end for start in decided.starts if (end := self.starter.start_static(start)) is not None
            ]
            if not at_once:
                return steps
            self._note_unwritten(at_once)
            decided = self._advance(decided.states, at_once, only_after_ended=only_after_ended)
            steps = replace(
                decided,
                moves=[*steps.moves, *decided.moves],
                starts=[*steps.starts, *decided.starts],
                more=steps.more or decided.more,
            )

    def _advance(
        self, states: Mapping[str, NodeState], ended: Sequence[NodeMove], *, only_after_ended: bool
    ) -> Steps:
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
            timed_out=self.timed_out,
            paused=self.run.paused_at is not None,
            most_starts=max(self.starter.left, 0),
            most_items=settings.DISPATCHER.workflow_map_items,
            costs=self.costs,
            only_after_ended=only_after_ended,
            first_failed=self.run.error_node,
            reason=self._reason,
        )

    def _reason(self, key: str, move: NodeMove | None) -> str:
        """Return why a node failed: in this step, or in an earlier one. move: of this step."""
        node = self.ended_static.get(key)
        if node is None:
            new = (one for one in self.writes.new_nodes if one.index is None and one.base == key)
            node = next(new, None)
        if node is None and move is not None:  # it ended without having started
            node = new_row(Node, code=move.code, detail=move.detail)
        if node is None:
            node = (
                Node.objects.defer("settings", "output")
                .filter(run=self.run, key=key)
                .order_by("-round")
                .first()
            )
        return "" if node is None else reason_of(node)

    def _rows_of(self, moves: Sequence[NodeMove]) -> list[Node]:
        """Return new rows for nodes that ended without having started."""
        if not moves:
            return []
        known = {node.base for node in self.writes.ended_nodes.values() if node.index is None}
        known |= {node.base for node in self.writes.new_nodes if node.index is None}
        rows = []
        for move in moves:
            if move.key in known:
                continue
            row = self.starter.new_node(self._spec(move.key))
            row.state, row.finished_at, row.output = move.state.value, self.now, move.output
            row.code, row.detail = move.code, move.detail
            rows.append(row)
        return rows

    def _spec(self, key: str) -> NodeSpec:
        handler = self.plan.on_failure
        return handler if handler is not None and handler.key == key else self.plan.nodes[key]

    def _keep_long_outputs(self) -> None:
        """Move the outputs of maps that are too long for their rows into artifacts; that of the run, too."""
        for node in (*self.writes.ended_nodes.values(), *self.writes.new_nodes):
            if type(node.output) is list and node.index is None and self._spec(node.base).map is not None:
                node.output_artifact = keep_long(self.run, node.output, self.writes, self.ports)
                node.output = None if node.output_artifact else node.output
        if self.end is not None and self.end.output is not None:
            self.output_artifact = keep_long(self.run, self.end.output, self.writes, self.ports)

    # -- writing ---------------------------------------------------------------------------------------------

    def _prepare(self, steps: Steps, more: bool) -> None:
        """Make the changes and further rows. more: another step is due at once; a sweep finds it if this
        process dies before. So it does where a failure cancels other nodes, until these have ended."""
        run, writes = self.run, self.writes
        self._log(steps)
        self.changes = {"steps": self.seen_steps + 1, "event_seq": run.event_seq}
        if self.passes_deadline:
            self.changes["cancel_requested_at"] = run.deadline_at
        keys = {move.key for move in steps.moves} | {start.node.key for start in steps.starts}
        if len(keys) > self.limits.members:
            self.changes["node_states"] = steps.states  # its values are texts
        elif keys:
            self.changes["node_states"] = Members({key: steps.states[key] for key in keys})
        if steps.first_failed not in ("", run.error_node):
            self.changes["error_node"] = steps.first_failed
        if run.deadline_at is not None and self.timed_out is None and self._starts_handler(steps):
            self.changes["deadline_at"] = None  # the run has failed before: only this node remains
        if more or (steps.cancel and not self.cancelled):
            writes.notices.append(due_notice(run.id, self.now))
        if steps.end is None:
            return
        self.changes |= {
            "state": steps.end.state.value,
            "output": None if self.output_artifact else steps.end.output,
            "output_artifact": self.output_artifact,
            "error_code": steps.end.code,
            "error_message": steps.end.detail,
            "error_node": steps.end.node,
            "finished_at": self.now,
        }
        if (callback := callback_for(run, steps.end, self.output_artifact, now=self.now)) is not None:
            writes.callbacks.append(callback)
        if self.parent_run_id is not None:
            writes.notices.append(
                new_row(
                    EndNotice,
                    followed_by=follower_of(self.parent_run_id),
                    ended_id=run.id,
                    round=run.round,
                    state=steps.end.state.value,
                    at=self.now,
                )
            )

    def _starts_handler(self, steps: Steps) -> bool:
        handler = self.plan.on_failure
        return handler is not None and any(start.node is handler for start in steps.starts)

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
                new_row(
                    RunEvent,
                    run_id=self.run.id,
                    seq=self.run.event_seq,
                    type=kind,
                    at=self.now,
                    data=data,
                )
            )


def _passes_deadline(run: Run, now: datetime) -> bool:
    """Return True if the deadline of a run has passed, and no request to end it is noted."""
    return run.cancel_requested_at is None and run.deadline_at is not None and run.deadline_at <= now
