"""Decides what a run does next, from the states of its nodes: no I/O, no clock.

The end of a run depends on the ends of its nodes alone, never on their order (unless a failure cancels the
nodes that run). `dispatcher_client.workflow_simulation` computes it a second, naive way; tests compare them.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, cast

from foundation.expressions import SearchFailed, is_true
from workflows.domain.budget import Budget, Costs, OverBudget
from workflows.domain.plan import MapSpec, NeedsRule, NodeSpec, Plan, RunningOnFailure
from workflows.domain.states import FINAL_NODE_STATES, NodeState, RunState, check_node_move
from workflows.domain.template import UNRESOLVED_REF, Unresolved, resolve
from workflows.domain.values import BadValue, artifact_of, check_items, child_count

NEEDS_UNMET, NEEDS_SKIPPED, WHEN_FALSE = "needs_unmet", "needs_skipped", "when_false"
RUN_FAILED, RUN_CANCELLED = "run_failed", "run_cancelled"
"""Reasons of states that a node reaches without running."""
Reason = Callable[[str, "NodeMove | None"], str]
"""Returns why a node failed; "" if that is not known. It gets the node's key and its move, if this call made
it."""
_OPEN = NodeState.PENDING, NodeState.RUNNING  # a tuple: it compares without hashes, which are slow of an enum


@dataclass(frozen=True, slots=True)
class NodeMove:
    """A node's new state. reason: a code and a text for people, where the state needs one. output: of a node
    that completed without running."""

    key: str
    state: NodeState
    code: str = ""
    detail: str = ""
    output: Any = None


@dataclass(frozen=True, slots=True)
class FileItems:
    """The items of a map are the lines of a file. artifact: its id."""

    artifact: str


@dataclass(frozen=True, slots=True)
class NodeStart:
    """A node to start. settings: its kind's, resolved. items: of a map, a list or the number of its
    children, or a file; their settings are resolved when each starts."""

    node: NodeSpec
    settings: Mapping[str, Any] = field(default_factory=dict)
    items: list[Any] | int | FileItems | None = None


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run. node: the node whose failure decided it; "" if none did."""

    state: RunState
    output: Any = None
    code: str = ""
    detail: str = ""
    node: str = ""


@dataclass(slots=True)
class Steps:
    """What to do now. states: of all nodes, afterwards. cancel: nodes under way that are to be cancelled.
    first_failed: the node whose failure cancels the rest; "" if the rest goes on. more: True if `most_starts`
    kept nodes from starting."""

    states: dict[str, NodeState]
    moves: list[NodeMove] = field(default_factory=list)
    starts: list[NodeStart] = field(default_factory=list)
    cancel: tuple[str, ...] = ()
    first_failed: str = ""
    end: RunEnd | None = None
    more: bool = False
    _outputs: dict[str, Any] = field(default_factory=dict)

    def move(self, move: NodeMove) -> None:
        """Make a move. Raises IllegalMove."""
        check_node_move(self.states[move.key], move.state)
        self.states[move.key] = move.state
        self.moves.append(move)
        if move.output is not None:
            self._outputs[move.key] = move.output

    def start(self, start: NodeStart) -> None:
        """Start a node. Raises IllegalMove."""
        check_node_move(self.states[start.node.key], NodeState.RUNNING)
        self.states[start.node.key] = NodeState.RUNNING
        self.starts.append(start)

    def scope(self, scope: Mapping[str, Any], **more: Any) -> Mapping[str, Any]:
        """Return a scope with the outputs of the nodes that ended in this call."""
        return ChainMap({**self._outputs, **more}, cast(MutableMapping[str, Any], scope))


def advance(
    plan: Plan,
    states: Mapping[str, NodeState],
    ended: Iterable[NodeMove],
    scope: Mapping[str, Any],
    *,
    cancelled: bool = False,
    timed_out: RunEnd | None = None,
    paused: bool = False,
    most_starts: int = 200,
    most_items: int = 100_000,
    costs: Costs | None = None,
    only_after_ended: bool = False,
    first_failed: str = "",
    reason: Reason = lambda key, move: "",
) -> Steps:
    """Return the next steps of a run.

    states: of all nodes, before `ended`. ended: the ends of nodes since then; those of nodes that have ended
    already are ignored. timed_out: the end of a run whose deadline has passed: only its `on_failure` node
    starts. scope: values by the names with which references begin; a node that has no output
    has None; outputs of `ended` are in it. cancelled: the run is to end as cancelled. paused: no node starts.
    costs: what references may cost; once they are spent, further nodes start in another call.
    only_after_ended: no node could start before `ended`, so only those after them are looked at.
    first_failed: the node whose failure made an earlier call cancel the rest. reason: why a node failed, for
    the run's error.
    """
    steps = Steps(dict(states))
    costs = Costs() if costs is None else costs
    for end in ended:
        if steps.states[end.key] not in FINAL_NODE_STATES:
            steps.move(end)
    if cancelled:
        _cancel_rest(plan, steps, RUN_CANCELLED, "the run was cancelled")
    elif timed_out is not None:
        _cancel_rest(plan, steps, RUN_FAILED, timed_out.detail)
    if not paused:
        pending = _after(plan, steps) if only_after_ended else _pending(plan, steps)
        _start_nodes(plan, steps, pending, scope, costs, most_starts=most_starts, most_items=most_items)
    failed = failed_node(plan, steps.states)
    if failed is not None and steps.states.get(first_failed) in (NodeState.FAILED, NodeState.CANCELLED):
        failed = first_failed  # of the others, some were cancelled because of it
    goes_on = timed_out is None and not cancelled
    if failed is not None and plan.running_on_failure is RunningOnFailure.CANCEL and goes_on:
        _cancel_rest(plan, steps, RUN_FAILED, f"{failed} failed")
        steps.first_failed = failed
    if _is_over(plan, steps.states):
        error = timed_out
        if error is None and failed is not None:
            error = _node_failed(plan, steps, failed, reason)
        steps.end = _end(plan, steps, scope, error, costs, cancelled=cancelled, paused=paused and goes_on)
    return steps


def failed_node(plan: Plan, states: Mapping[str, NodeState]) -> str | None:
    """Return the first node, in the order of the plan, whose failure fails the run; None if there is none.

    In place of a node that did not start, return the failed node that it needs, whose failure alone would not
    fail the run."""
    unmet, found = None, states.values()
    if NodeState.FAILED not in found and NodeState.CANCELLED not in found:
        return None
    for key in plan.nodes:
        if key in plan.tolerated:
            continue
        if states[key] is NodeState.FAILED:
            return key
        if states[key] is NodeState.CANCELLED and unmet is None:
            unmet = key
    return None if unmet is None else _cause(plan, states, unmet)


def _cause(plan: Plan, states: Mapping[str, NodeState], key: str) -> str:
    """Return the node whose end kept this one from starting: of its needs, and of theirs in turn, the first
    failed one, or, if none failed, the first cancelled one."""
    bad = NodeState.FAILED, NodeState.CANCELLED
    while states[key] is NodeState.CANCELLED and _unmet(plan.nodes[key], states) is not None:
        needs = [need for need in plan.nodes[key].needs if states[need] in bad]
        if not needs:
            break  # cancelled with the run, before they have ended
        key = min(needs, key=lambda need: (bad.index(states[need]), plan.places[need]))
    return key


def _cancel_rest(plan: Plan, steps: Steps, code: str, detail: str) -> None:
    """Cancel the nodes that have not started, and ask for the cancel of those under way."""
    started = {start.node.key for start in steps.starts}
    for key in plan.nodes:
        if steps.states[key] is NodeState.PENDING or key in started:
            if key in started:  # decided in this call: it never started
                steps.states[key] = NodeState.PENDING
            steps.move(NodeMove(key, NodeState.CANCELLED, code, detail))
    steps.starts = []
    steps.cancel = tuple(key for key in plan.nodes if steps.states[key] is NodeState.RUNNING)


def _pending(plan: Plan, steps: Steps) -> Iterator[NodeSpec]:
    """Yield the pending nodes in the order of the plan."""
    states, nodes = steps.states, plan.nodes
    yield from [nodes[key] for key in nodes if states[key] is NodeState.PENDING]


def _after(plan: Plan, steps: Steps) -> Iterator[NodeSpec]:
    """Yield the pending nodes after those that ended in this call, or end meanwhile, in the order of the
    plan."""
    seen: set[str] = set()
    places: list[int] = []
    names, moved = list(plan.nodes), 0
    while True:
        for move in steps.moves[moved:]:
            for key in plan.needed_by.get(move.key, ()):
                if key not in seen:
                    seen.add(key)
                    heappush(places, plan.places[key])
        moved = len(steps.moves)
        if not places:
            return
        key = names[heappop(places)]
        if steps.states[key] is NodeState.PENDING:
            yield plan.nodes[key]


def _start_nodes(
    plan: Plan,
    steps: Steps,
    pending: Iterator[NodeSpec],
    scope: Mapping[str, Any],
    costs: Costs,
    *,
    most_starts: int,
    most_items: int,
) -> None:
    """Decide each of these nodes whose needs have ended. The order of the plan lets a node that ends at once
    decide those after it."""
    states = steps.states
    for node in pending:
        if not _have_ended(node.needs, states):
            continue
        if len(steps.starts) >= most_starts or costs.are_spent:
            steps.more = True
            return
        decided = _decide(node, states, steps.scope(scope), most_items, costs.budget())
        if isinstance(decided, NodeStart):
            steps.start(decided)
        else:
            steps.move(decided)


def _have_ended(needs: Iterable[str], states: Mapping[str, NodeState]) -> bool:
    for need in needs:  # noqa: SIM110 - a generator for each of a thousand nodes costs half a millisecond
        if states[need] in _OPEN:
            return False
    return True


def _is_over(plan: Plan, states: Mapping[str, NodeState]) -> bool:
    """Return True if all nodes but that of `on_failure` have ended."""
    found = list(states.values())
    count = sum(found.count(state) for state in _OPEN)
    return count == (plan.on_failure is not None and states[plan.on_failure.key] in _OPEN)


def _decide(
    node: NodeSpec,
    states: Mapping[str, NodeState],
    scope: Mapping[str, Any],
    most_items: int,
    budget: Budget,
) -> NodeMove | NodeStart:
    """Return the end of a node that does not run, or its start. All nodes that it needs have ended."""
    if (unmet := _unmet(node, states)) is not None:
        return unmet
    try:
        if node.when is not None and not is_true(budget.search(node.when, scope)):
            return NodeMove(node.key, NodeState.SKIPPED, WHEN_FALSE, f"{node.when.text} is false")
        if node.map is None:
            return NodeStart(node, resolve(node.settings, scope, budget=budget))
        return _map(node, scope, most_items, budget)
    except SearchFailed as error:
        return NodeMove(node.key, NodeState.FAILED, UNRESOLVED_REF, f"when: {error}")
    except OverBudget as error:
        return NodeMove(node.key, NodeState.FAILED, error.code, f"when: {error}")
    except BadValue as error:
        return NodeMove(node.key, NodeState.FAILED, error.code, str(error))
    except Unresolved as error:
        place = "".join(f"/{part}" for part in error.path)
        return NodeMove(node.key, NodeState.FAILED, error.code, f"{place}: {error}")


def _unmet(node: NodeSpec, states: Mapping[str, NodeState]) -> NodeMove | None:
    """Return the end of a node whose rule is not met; None if it runs."""
    found = {states[need] for need in node.needs}
    failed = sorted(need for need in node.needs if states[need] in (NodeState.FAILED, NodeState.CANCELLED))
    if not found or node.rule is NeedsRule.ALL_DONE:
        return None
    if node.rule is NeedsRule.ANY_SUCCESS:
        if NodeState.COMPLETED in found:
            return None
    elif not failed and (node.rule is NeedsRule.NONE_FAILED or NodeState.COMPLETED in found):
        return None
    if failed:
        return NodeMove(
            node.key, NodeState.CANCELLED, NEEDS_UNMET, f"it needs {failed[0]}, which did not complete"
        )
    return NodeMove(node.key, NodeState.SKIPPED, NEEDS_SKIPPED, "all nodes that it needs were skipped")


def _map(node: NodeSpec, scope: Mapping[str, Any], most_items: int, budget: Budget) -> NodeMove | NodeStart:
    """Return the start of a map, or its end: an empty list completes it."""
    assert node.map is not None
    if node.map.over is None:
        count = resolve(node.map.count, scope, ("map", "count"), budget=budget)
        items = total = child_count(count, most_items)
    else:
        items = resolve(node.map.over, scope, ("map", "over"), budget=budget)
        if (artifact := artifact_of(items)) is not None:
            return NodeStart(node, items=FileItems(artifact))
        check_items(items, most_items)
        total = len(items)
    if total == 0:
        return NodeMove(node.key, NodeState.COMPLETED, output=[])
    return NodeStart(node, items=items)


def _end(
    plan: Plan,
    steps: Steps,
    scope: Mapping[str, Any],
    failed: RunEnd | None,
    costs: Costs,
    *,
    cancelled: bool,
    paused: bool,
) -> RunEnd | None:
    """Return the end of a run whose nodes have ended; None while its `on_failure` node has yet to end.
    failed: the end because of a node's failure, or of the deadline."""
    handler = plan.on_failure
    if cancelled:
        end = RunEnd(RunState.CANCELLED, code=RUN_CANCELLED, detail="The run was cancelled.")
    else:
        end = _outcome(plan, steps.scope(scope), failed, costs.budget())
    if handler is None or steps.states[handler.key] in FINAL_NODE_STATES:
        return end
    if steps.states[handler.key] is NodeState.RUNNING:
        steps.cancel = (handler.key,) if cancelled else ()
        return None
    if end.state is not RunState.FAILED:
        why = "the run was cancelled" if cancelled else "the run did not fail"
        steps.move(NodeMove(handler.key, NodeState.SKIPPED, WHEN_FALSE, why))
        return end
    if paused:
        return None
    error = {"node": end.node or None, "code": end.code, "message": end.detail}
    decided = _decide(handler, steps.states, steps.scope(scope, error=error), 0, costs.budget())
    if isinstance(decided, NodeMove):
        steps.move(decided)
        return end
    steps.start(decided)
    return None


def _node_failed(plan: Plan, steps: Steps, key: str, reason: Reason) -> RunEnd:
    """Return the end of a run that this node fails: the first one. Of the others only the number is
    said."""
    move = next((move for move in steps.moves if move.key == key), None)
    why = reason(key, move)
    detail = f"{key} failed: {why}" if why else f"{key} failed"
    failed = [
        one for one in plan.nodes if steps.states[one] is NodeState.FAILED and one not in plan.tolerated
    ]
    if more := len(set(failed) - {key}):
        detail += f" ({more} more {'node' if more == 1 else 'nodes'} failed)"
    return RunEnd(RunState.FAILED, code="node_failed", detail=detail, node=key)


def _outcome(plan: Plan, scope: Mapping[str, Any], failed: RunEnd | None, budget: Budget) -> RunEnd:
    if failed is not None:
        return failed
    try:
        return RunEnd(RunState.COMPLETED, output=resolve(plan.output, scope, ("output",), budget=budget))
    except Unresolved as error:
        place = "".join(f"/{part}" for part in error.path)
        return RunEnd(RunState.FAILED, code=error.code, detail=f"{place}: {error}")


# -- maps ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """The children of a map that are to run. total: their number. items: length of the map's list, which is
    greater where a restart keeps children. next: the first that has not started."""

    total: int
    items: int
    next: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0

    def fails(self, fail_at: int | float) -> bool:
        """Return True if so many children failed that the map fails."""
        most = fail_at if isinstance(fail_at, int) else max(1, math.ceil(fail_at * self.items))
        return self.failed >= most


def children_to_start(spec: MapSpec, window: Window, most: int) -> range:
    """Return the indices of the children to start now: as many as `max_parallel` and `most` allow, and none
    once the map fails."""
    if window.fails(spec.fail_at):
        return range(0)
    room = min(spec.max_parallel - window.running, window.total - window.next, most)
    return range(window.next, window.next + max(room, 0))


def end_of_map(spec: MapSpec, window: Window) -> NodeState | None:
    """Return the state in which a map ends; None while children run or have yet to start."""
    if window.running:
        return None
    if window.fails(spec.fail_at):
        return NodeState.FAILED
    return NodeState.COMPLETED if window.next == window.total else None


# -- restarts ------------------------------------------------------------------------------------------------


def nodes_to_restart(
    plan: Plan, states: Mapping[str, NodeState], chosen: Iterable[str] | None = None
) -> set[str]:
    """Return the nodes that a restart runs anew: the chosen ones, by default those that failed or were
    cancelled, and all nodes after them. A failed map keeps its completed children."""
    if chosen is None:
        chosen = [key for key in plan.nodes if states[key] in (NodeState.FAILED, NodeState.CANCELLED)]
    found: set[str] = set()
    open_nodes = list(chosen)
    while open_nodes:
        key = open_nodes.pop()
        if key not in found:
            found.add(key)
            open_nodes += plan.needed_by[key]
    return found
