"""Goes on with a run whose dead letter an operator retried with success, or whose sub-run was restarted with
success: the node counts as completed, and the nodes after it run. Other failed nodes stay failed; a restart
runs them again.

A success is ignored if a restart has run the node again since, or the run was cancelled. It is postponed
while the run is not over and a node after the failed one has begun with what the failure left it: once the
run has ended, a new round runs all nodes after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Substr

from artifacts.refs import ref
from artifacts.uses import add_run_uses
from foundation.database.connections import write_lock
from jobs.models import EndNotice, Job
from jobs.ports import Ports
from workflows.definition.read import read_definition
from workflows.domain.advance import NEEDS_SKIPPED, NEEDS_UNMET, Window, nodes_to_restart
from workflows.domain.errors import OutputNotWanted
from workflows.domain.plan import NodeKind, Plan
from workflows.domain.states import NodeState, RunState
from workflows.execution.notices import due_notice
from workflows.execution.open_maps import MAP_FAILED
from workflows.execution.reads import EndedNodes
from workflows.models import MapState, Node, Run, RunEvent, follower_of

_POSTPONED = "later:"
_UNSUCCESSFUL = NodeState.FAILED, NodeState.CANCELLED
"""States of nodes that a later success completes: a sub-run may have been cancelled alone."""


def postponed_of(run_id: str) -> str:
    """Return the value of `EndNotice.followed_by` for a postponed success."""
    return f"{_POSTPONED}{run_id}"


def is_retried(notice: EndNotice) -> bool:
    """Return True for the success of a job, or sub-run, that had ended before."""
    return notice.round > 1 and notice.state == NodeState.COMPLETED


def retried_among(run_ids: Iterable[str]) -> set[str]:
    """Return those of these runs with notices that `is_retried` names."""
    names = [follower_of(run_id) for run_id in run_ids]
    notices = EndNotice.objects.filter(followed_by__in=names, round__gt=1, state=NodeState.COMPLETED.value)
    return {name.partition(":")[2] for name in notices.values_list("followed_by", flat=True)}


def retryable(letters: QuerySet[Job]) -> QuerySet[Job]:
    """Select those of these dead letters whose run, and each that it is a part of, was not cancelled, and
    those without a run."""
    run_id = Substr(OuterRef("followed_by"), len(follower_of("")) + 1)
    for levels in range(settings.DISPATCHER.workflow_depth + 1):
        cancelled = Run.objects.filter(_is_cancelled("parent_node__run__" * levels), id=run_id)
        letters = letters.exclude(Exists(cancelled))
    return letters


def _is_cancelled(run: str) -> Q:
    """Return the condition that a run was cancelled, or is to be. run: prefix of its columns."""
    requested = Q((f"{run}state", RunState.RUNNING.value), (f"{run}error_code", ""))
    requested &= Q((f"{run}cancel_requested_at__isnull", False))
    in_time = Q((f"{run}deadline_at", None)) | Q((f"{run}deadline_at__gt", F(f"{run}cancel_requested_at")))
    return (requested & in_time) | Q((f"{run}state", RunState.CANCELLED.value))  # past it, it ends as failed


def take_retried(run_id: str, ports: Ports) -> bool:
    """Take the notices of retried jobs of a run into account, and delete them. Return True if the run goes
    on.

    A run that has ended gets a new round; in a running one the nodes that the failure kept from starting
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
        if run is None or is_cancelled(run) or run.erase_requested_at is not None or not notices:
            EndNotice.objects.filter(id__in=[notice.id for notice in notices]).delete()
            return False
        plan = read_definition(run.version.spec)
        is_over = run.state != RunState.RUNNING
        taken, postponed = [], []
        unread = set[int]()
        ended = EndedNodes(run, notices)
        for notice in notices:
            node = ended.by_ended_id.get(notice.ended_id)
            if node is not None and node.finished_at is None and not is_over:
                unread.add(notice.id)  # the run has yet to see that it failed: this is an end like any other
                continue
            if node is None or not _is_newest_failure(run, node) or not _take_output(run, node, ended):
                continue
            if not is_over and _has_gone_on(run, plan, node):
                postponed.append(notice.id)
            else:
                taken.append(node)
        EndNotice.objects.filter(id__in=postponed).update(followed_by=postponed_of(run_id))
        EndNotice.objects.filter(id__in={notice.id for notice in notices} - {*postponed} - unread).delete()
        if not taken:
            return False
        after = _complete(run, plan, taken)
        run.steps += 1  # a step under way has read counts of maps that are old now
        if after is None:
            run.save(update_fields=["steps", "node_states"])
            return False
        waiting = after if is_over else _unstart(run, after)
        whole = {node.base for node in taken if node.index is None}
        run.node_states |= dict.fromkeys(waiting, NodeState.PENDING.value)
        for key in waiting:
            needs = plan.nodes[key].needs
            if plan.nodes[key].map is not None and (key not in _bases(taken) or needs & (waiting | whole)):
                run.kept_maps.pop(key, None)  # its list may be another one now
        if is_over:
            _open_round(run, plan)
            ports.reopened([run.id])
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


def end_postponed(run_ids: Iterable[str]) -> list[str]:
    """Make the postponed successes of these runs, which have ended, due. Return the followers to wake. Those
    of a cancelled run are deleted; a run that was restarted meanwhile keeps its own until it ends again."""
    names = {postponed_of(run_id): run_id for run_id in run_ids}
    found = EndNotice.objects.filter(followed_by__in=names).order_by()
    waiting = [names[name] for name in found.values_list("followed_by", flat=True).distinct()]
    if not waiting:
        return []
    states = dict(Run.objects.filter(id__in=waiting).values_list("id", "state"))
    goes_on = []
    for run_id in waiting:
        own = EndNotice.objects.filter(followed_by=postponed_of(run_id))
        state = states.get(run_id)
        if state in (RunState.COMPLETED, RunState.FAILED):
            own.update(followed_by=follower_of(run_id))
            goes_on.append(follower_of(run_id))
        elif state != RunState.RUNNING:
            own.delete()
    return goes_on


def postponed_of_ended_runs(most: int) -> list[str]:
    """Return runs that are not running, or are gone, with postponed successes."""
    names = EndNotice.objects.filter(followed_by__startswith=_POSTPONED).order_by()
    found = [name.removeprefix(_POSTPONED) for name in names.values_list("followed_by", flat=True).distinct()]
    running = set(Run.objects.filter(id__in=found, state=RunState.RUNNING.value).values_list("id", flat=True))
    return [run_id for run_id in found if run_id not in running][:most]


def is_cancelled(run: Run) -> bool:
    """Return True if the run was cancelled, or one that it is a part of was, or is to be."""
    above: Run | None = run
    while above is not None:
        if above.state == RunState.CANCELLED:
            return True
        above = Run.objects.filter(nodes__id=above.parent_node_id).first() if above.parent_node_id else None
        if above is not None and above.state == RunState.RUNNING and above.cancel_requested_at is not None:
            return True
    return False


def refuse_unwanted(run: Run) -> None:
    """Raise OutputNotWanted if a run that this one is a part of would drop the output of its next round."""
    part = run
    while part.parent_node_id is not None:
        node = Node.objects.select_related("run").defer("settings", "output").get(id=part.parent_node_id)
        if (why := _why_output_is_dropped(node.run, node)) is not None:
            raise OutputNotWanted(f"Run {node.run_id}, whose node {node.key} is run {part.id}, {why}.")
        part = node.run


def _why_output_is_dropped(run: Run, node: Node) -> str | None:
    """Return why a run would drop a later success of its node's sub-run, and what to do; None if it would
    take it."""
    restart = f'restart that run with {{"nodes": ["{node.base}"]}}'
    if run.erase_requested_at is not None:
        return "was erased; start a new run"
    if run.state == RunState.CANCELLED:
        return f"was cancelled; {restart}"
    if run.state == RunState.RUNNING and run.cancel_requested_at is not None:
        return f"is being cancelled; once it has ended, {restart}"
    if node.finished_at is None or _is_newest_failure(run, node):
        return None
    if node.state in _UNSUCCESSFUL:
        return "has run this node again since; restart the newest sub-run of the node"
    return f"took its output; once it has ended, {restart}"


def _is_newest_failure(run: Run, node: Node) -> bool:
    """Return True if this node, or item of a map, has failed or was cancelled, and has not run again."""
    if node.state not in _UNSUCCESSFUL:
        return False
    if node.index is None and run.node_states[node.base] not in _UNSUCCESSFUL:
        return False
    return not Node.objects.filter(run=run, key=node.base, round__gt=node.round).exists()


def _take_output(run: Run, node: Node, ended: EndedNodes) -> bool:
    """Set the output of a sub-run's node, not written yet. Return False if the sub-run was restarted again
    since its success: its next end sends a notice."""
    child = ended.child_runs.get(node.id)
    if child is None:
        return True
    node.output, node.output_artifact = child.output, child.output_artifact
    return child.state == RunState.COMPLETED


def _has_gone_on(run: Run, plan: Plan, node: Node) -> bool:
    """Return True if a node after this failed one has begun, or the handler of failures."""
    if run.node_states[node.base] not in _UNSUCCESSFUL:
        return False  # an item of a map that has not failed: the nodes after it do not depend on it
    if plan.on_failure is not None and run.node_states[plan.on_failure.key] != NodeState.PENDING:
        return True
    after = nodes_to_restart(plan, {}, plan.needed_by.get(node.base, ()))
    decided = {key for key in after if run.node_states[key] != NodeState.PENDING}
    return bool(decided - _unstarted(run, decided))


def _bases(nodes: Sequence[Node]) -> set[str]:
    return {node.base for node in nodes if node.index is not None}


def _complete(run: Run, plan: Plan, nodes: Sequence[Node]) -> set[str] | None:
    """Mark these nodes as completed. Return the nodes that are to run now; None if the run does not go on: an
    item of a map that still fails, or the handler of failures. A map that failed in this round of a run that
    has not ended goes on in its row; one of an earlier round gets a row of this one, and keeps its completed
    items."""
    after: set[str] | None = None
    for node in nodes:
        node.state, node.code, node.detail = NodeState.COMPLETED.value, "", ""
        of_sub_run = ["output", "output_artifact"] if node.kind == NodeKind.WORKFLOW else []
        node.save(update_fields=["state", "code", "detail", *of_sub_run])
        if node.output_artifact is not None:
            add_run_uses([run.id], run.tenant_id, ref(node.output_artifact))
        if plan.on_failure is not None and node.base == plan.on_failure.key:
            run.node_states[node.base] = NodeState.COMPLETED.value
            continue
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


def _unstarted(run: Run, keys: set[str]) -> set[str]:
    """Return those of these nodes that a failure kept from starting."""
    found: set[str] = set()
    for node in Node.objects.filter(run=run, key__in=keys).order_by("round"):
        (found.add if node.code in (NEEDS_UNMET, NEEDS_SKIPPED) else found.discard)(node.key)
    return found


def _unstart(run: Run, keys: set[str]) -> set[str]:
    """Delete the rows of nodes that a failure kept from starting; return their keys. Rows of earlier rounds
    stay."""
    found = _unstarted(run, keys)
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
