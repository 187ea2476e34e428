"""Goes on with a run whose dead letter an operator retried with success: the job's node counts as
completed, and the nodes after it run. Other failed nodes stay failed; a restart runs them again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.db import transaction

from foundation.database.connections import write_lock
from jobs.models import EndNotice
from jobs.ports import Ports
from workflows.definition.read import read_definition
from workflows.domain.advance import NEEDS_SKIPPED, NEEDS_UNMET, Window, nodes_to_restart
from workflows.domain.plan import Plan
from workflows.domain.states import NodeState, RunState
from workflows.execution.notices import due_notice
from workflows.execution.open_maps import MAP_FAILED
from workflows.execution.reads import EndedNodes
from workflows.models import MapState, Node, Run, RunEvent, follower_of


def is_retried(notice: EndNotice) -> bool:
    """Return True for the success of a job, or sub-run, that had ended before."""
    return notice.round > 1 and notice.state == NodeState.COMPLETED


def retried_among(run_ids: Iterable[str]) -> set[str]:
    """Return those of these runs with notices that `is_retried` names."""
    names = [follower_of(run_id) for run_id in run_ids]
    notices = EndNotice.objects.filter(followed_by__in=names, round__gt=1, state=NodeState.COMPLETED.value)
    return {name.partition(":")[2] for name in notices.values_list("followed_by", flat=True)}


def take_retried(run_id: str, ports: Ports) -> bool:
    """Take the notices of retried jobs of a run into account, and delete them. Return True if the run goes
    on.

    A run that has failed gets a new round; in a running one the nodes that the failure kept from starting
    wait again.
    """
    now = ports.clock.now()
    with write_lock(1), transaction.atomic():
        run = Run.objects.select_for_update().select_related("version").filter(id=run_id).first()
        notices = list(
            EndNotice.objects.filter(
                followed_by=follower_of(run_id), round__gt=1, state=NodeState.COMPLETED.value
            )
        )
        EndNotice.objects.filter(id__in=[notice.id for notice in notices]).delete()
        if run is None or run.erase_requested_at is not None or not notices:
            return False
        plan = read_definition(run.version.spec)
        taken = [
            node
            for notice in notices
            if (node := EndedNodes(run, [notice]).by_ended_id.get(notice.ended_id)) is not None
            and node.state == NodeState.FAILED
        ]
        is_over = run.state != RunState.RUNNING
        after = _complete(run, plan, taken)
        run.steps += 1  # a step under way has read counts of maps that are old now
        if after is None:
            run.save(update_fields=["steps"])
            return False
        waiting = after if is_over else _unstart(run, after)
        run.node_states |= dict.fromkeys(waiting, NodeState.PENDING.value)
        for key in waiting:
            if plan.nodes[key].map is not None and key not in _bases(taken):
                run.kept_maps.pop(key, None)  # its list may be another one now
        if is_over:
            _open_round(run, plan)
        run.event_seq += 1
        run.save()
        RunEvent.objects.create(
            run=run,
            seq=run.event_seq,
            type="restarted" if is_over else "retried",
            at=now,
            data={
                "round": run.round,
                "retried": sorted(node.key for node in taken)[:100],
                "nodes": sorted(waiting),
            },
        )
        due_notice(run.id, now).save(force_insert=True)
    ports.wake_followers([follower_of(run.id)])
    ports.announce([run.id])
    return True


def _bases(nodes: Sequence[Node]) -> set[str]:
    return {node.base for node in nodes if node.index is not None}


def _complete(run: Run, plan: Plan, nodes: Sequence[Node]) -> set[str] | None:
    """Mark these nodes as completed. Return the nodes that are to run now; None if the run does not go on: an
    item of a map that still fails. A map that failed in this round of a run that has not ended goes on in its
    row; one of an earlier round gets a row of this one, and keeps its completed items."""
    after: set[str] | None = None
    for node in nodes:
        node.state, node.code, node.detail = NodeState.COMPLETED.value, "", ""
        node.save(update_fields=["state", "code", "detail"])
        if node.index is not None:
            own = _map_that_goes_on(run, plan, node)
            if own is None:
                continue
            again = nodes_to_restart(plan, {}, plan.needed_by[node.base])
            if run.state == RunState.RUNNING and own.round == run.round:
                _reopen(run, own)
            else:
                run.node_states[node.base] = NodeState.PENDING.value
                run.kept_maps.setdefault(node.base, own.round)
        else:
            run.node_states[node.base] = NodeState.COMPLETED.value
            again = nodes_to_restart(plan, {}, plan.needed_by.get(node.base, ()))
        after = again | (after or set())
    return after


def _map_that_goes_on(run: Run, plan: Plan, child: Node) -> Node | None:
    """Count a map's child as completed. Return the map's newest row if it has failed, and does not any
    more."""
    spec = plan.nodes[child.base].map
    state = MapState.objects.select_for_update(of=("self",)).select_related("node").filter(
        node__run=run, node__base=child.base, node__round=child.round, node__index=None
    ).first()  # fmt: skip
    if spec is None or state is None:
        return None
    state.failed -= 1
    state.completed += 1
    state.save(update_fields=["failed", "completed"])
    if run.node_states[child.base] != NodeState.FAILED:
        return None
    if Window(state.total, state.total, failed=state.failed).fails(spec.fail_at):
        return None
    newest = Node.objects.filter(run=run, key=child.base).order_by("-round")[0]
    has_run_again = newest.id != state.node_id  # with this item
    if run.state == RunState.RUNNING and (has_run_again or newest.code != MAP_FAILED):
        return None
    return newest


def _reopen(run: Run, node: Node) -> None:
    """Let a map go on with the items that it has not started."""
    node.state, node.finished_at, node.code, node.detail = NodeState.RUNNING.value, None, "", ""
    node.save(update_fields=["state", "finished_at", "code", "detail"])
    run.node_states[node.base] = NodeState.RUNNING.value


def _unstart(run: Run, keys: set[str]) -> set[str]:
    """Delete the rows of nodes that a failure kept from starting; return their keys. Rows of earlier rounds
    stay."""
    found: set[str] = set()
    for node in Node.objects.filter(run=run, key__in=keys).order_by("round"):
        (found.add if node.code in (NEEDS_UNMET, NEEDS_SKIPPED) else found.discard)(node.key)
    Node.objects.filter(run=run, key__in=found, round=run.round).delete()
    return found


def _open_round(run: Run, plan: Plan) -> None:
    if plan.on_failure is not None:
        run.node_states[plan.on_failure.key] = NodeState.PENDING.value
    run.round += 1
    run.state, run.finished_at = RunState.RUNNING.value, None
    run.output = run.output_artifact = None
    run.error_code = run.error_message = run.error_node = ""
    run.cancel_requested_at = run.paused_at = run.deadline_at = None
