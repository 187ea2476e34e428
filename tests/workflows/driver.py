"""Runs a plan to its end in memory: the part of the applier, with nodes that end in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workflows.domain.advance import (
    NodeMove,
    NodeStart,
    RunEnd,
    Window,
    advance,
    children_to_start,
    end_of_map,
)
from workflows.domain.plan import NodeSpec, Plan
from workflows.domain.states import NodeState
from workflows.domain.template import Unresolved, resolve

Run = Callable[[str, Any], Any]
"""Gets the node's key and its resolved settings; returns the output or raises NodeFailed."""


class NodeFailed(Exception):
    """The node fails."""


class NodeExpired(Exception):
    """The node's wait expires."""


_EXPIRED = {"fail": NodeState.FAILED, "skip": NodeState.SKIPPED, "default": NodeState.COMPLETED}


@dataclass
class Driver:
    """Runs a plan. run: a node's work. choose: returns the position of the next end among so many. pauses:
    returns whether the run is paused when a node ends."""

    plan: Plan
    inputs: Any
    run: Run
    choose: Callable[[int], int] = lambda count: 0
    most_starts: int = 200
    pauses: Callable[[], bool] = lambda: False
    outputs: dict[str, Any] = field(default_factory=dict)
    states: dict[str, NodeState] = field(default_factory=dict)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    running: list[NodeStart] = field(default_factory=list)
    most_at_once: int = 0
    first_failed: str = ""
    looks_at_all: bool = True
    """Not only nodes after the next ends may start: the run begins, was paused, or begins anew."""

    def __post_init__(self) -> None:
        keys = [*self.plan.nodes, *([self.plan.on_failure.key] if self.plan.on_failure else [])]
        self.states = dict.fromkeys(keys, NodeState.PENDING)

    def scope(self) -> dict[str, Any]:
        return {"inputs": self.inputs, "run": {"id": "driven"}, **self.outputs}

    def advance(self, ended: list[NodeMove], **more: Any) -> RunEnd | None:
        """Advance until every node that may start has started."""
        only_after_ended = not self.looks_at_all
        while True:
            for move in ended:
                if move.output is not None:
                    self.outputs[move.key] = move.output
            steps = advance(
                self.plan,
                self.states,
                ended,
                self.scope(),
                most_starts=self.most_starts,
                only_after_ended=only_after_ended,
                first_failed=self.first_failed,
                **more,
            )
            only_after_ended = not steps.more
            self.states = steps.states
            self.first_failed = steps.first_failed or self.first_failed
            self.outputs |= {move.key: move.output for move in steps.moves if move.output is not None}
            self.running += steps.starts
            ended = [NodeMove(key, NodeState.CANCELLED, "cancelled") for key in steps.cancel]
            self.running = [start for start in self.running if start.node.key not in steps.cancel]
            if not steps.more and not ended:
                self.looks_at_all = bool(more.get("paused"))
                return steps.end

    def restart(self, keys: Iterable[str]) -> None:
        """Let these nodes run again, and the node of `on_failure`."""
        handler = [self.plan.on_failure.key] if self.plan.on_failure else []
        for key in [*keys, *handler]:
            self.states[key] = NodeState.PENDING
            self.outputs.pop(key, None)
        self.looks_at_all, self.first_failed = True, ""

    def to_end(self, **more: Any) -> RunEnd:
        """Run to the end. Fails if the run waits for nothing."""
        end = self.advance([], **more)
        while end is None:
            assert self.running or self.looks_at_all, f"nothing runs, and the run goes on: {self.states}"
            ended = []
            if self.running:
                ended = [self.finished(self.running.pop(self.choose(len(self.running))))]
            paused = {"paused": True} if ended and self.pauses() else {}
            end = self.advance(ended, **paused, **more)
        assert not self.running
        return end

    def finished(self, start: NodeStart) -> NodeMove:
        if start.items is None:
            return self.called(start.node, start.settings)
        return self.mapped(start, start.items)

    def called(self, node: NodeSpec, settings: Any) -> NodeMove:
        if "choose_from" in settings and not (
            isinstance(settings["choose_from"], list) and settings["choose_from"]
        ):
            return NodeMove(node.key, NodeState.FAILED, "no_choices")
        self.calls.append((node.key, settings))
        try:
            return NodeMove(node.key, NodeState.COMPLETED, output=self.run(node.key, settings))
        except NodeFailed as error:
            return NodeMove(node.key, NodeState.FAILED, "failed", str(error))
        except NodeExpired:
            state = _EXPIRED[node.options.get("on_expiry", "fail")]
            output = node.options["default"] if state is NodeState.COMPLETED else None
            return NodeMove(node.key, state, output=output)

    def mapped(self, start: NodeStart, items: list[Any] | int) -> NodeMove:
        spec = start.node.map
        assert spec is not None
        total = items if isinstance(items, int) else len(items)
        window, open_children, outputs = Window(total, total), list[int](), list[Any]([None] * total)
        while (state := end_of_map(spec, window)) is None:
            indices = children_to_start(spec, window, 3)
            open_children += indices
            window = replace(window, next=window.next + len(indices), running=window.running + len(indices))
            self.most_at_once = max(self.most_at_once, window.running)
            assert open_children, "a map that neither runs nor ends"
            index = open_children.pop(self.choose(len(open_children)))
            child = self.child(start, items, index)
            done = child.state in (NodeState.COMPLETED, NodeState.SKIPPED)
            outputs[index] = child.output
            window = replace(
                window,
                running=window.running - 1,
                completed=window.completed + done,
                failed=window.failed + (not done),
            )
        return NodeMove(start.node.key, state, output=outputs if state is NodeState.COMPLETED else None)

    def child(self, start: NodeStart, items: list[Any] | int, index: int) -> NodeMove:
        names: Mapping[str, Any] = {"index": index}
        if isinstance(items, list):
            names = {"index": index, "item": items[index]}
        try:
            settings = resolve(start.node.settings, {**self.scope(), **names})
        except Unresolved:
            return NodeMove(start.node.key, NodeState.FAILED)
        return self.called(start.node, settings)
