"""The maps of a run that are under way: their windows of children, and their ends."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from datetime import datetime
from typing import Any, cast

from jobs.ports import Ports
from workflows.domain.advance import NodeMove, Window, children_to_start, end_of_map
from workflows.domain.budget import Costs, OverBudget
from workflows.domain.plan import INDEX, ITEM, MapSpec, NodeSpec, Plan
from workflows.domain.states import NodeState
from workflows.domain.template import Unresolved, resolve
from workflows.execution import reads
from workflows.execution.file_maps import FileFault, items_of, read_on
from workflows.execution.reasons import reason_of
from workflows.execution.scope import map_output
from workflows.execution.starts import CHUNK, NodeStarter
from workflows.execution.writes import Writes
from workflows.models import MapChunk, MapFile, MapState, Node, Run

MAP_FAILED = "map_failed"


class OpenMaps:
    """The open maps of a run in one step. states: by the key of their node. scope: what references see."""

    def __init__(
        self,
        run: Run,
        plan: Plan,
        *,
        starter: NodeStarter,
        writes: Writes,
        scope: Mapping[str, Any],
        costs: Costs,
        ports: Ports,
        now: datetime,
    ) -> None:
        self._run, self._plan, self._starter, self._writes = run, plan, starter, writes
        self._scope, self._costs, self._ports, self._now = scope, costs, ports, now
        self.states: dict[str, MapState] = {}
        self.files: dict[str, MapFile] = {}
        """Files that are not read to their end."""
        if plan.has_maps:
            self.states = {state.node.base: state for state in reads.open_maps(run=run.id)}
            if self._has_other_open_maps():
                files = MapFile.objects.select_related("node").filter(
                    node__run=run.id, node__finished_at=None, is_read=False
                )
                self.files = {file.node.base: file for file in files}

    def _has_other_open_maps(self) -> bool:
        """Return True if a map runs that has no state yet: it reads its file."""
        states = self._run.node_states
        return any(
            node.map is not None and key not in self.states and states[key] == NodeState.RUNNING
            for key, node in self._plan.nodes.items()
        )

    def count_end(self, child: Node) -> None:
        """Count a child that has ended."""
        state = self.states.get(child.base)
        if state is None:
            return
        state.running -= 1
        if child.state in (NodeState.COMPLETED, NodeState.SKIPPED):
            state.completed += 1
        else:
            state.failed += 1
        self._writes.maps[state.node_id] = state

    def move(self, *, starts: bool, cancelled: bool) -> list[tuple[Node, NodeMove]]:
        """Start the next children of each map; return the maps that end. starts: children may start."""
        ends = self._move_files(starts=starts, cancelled=cancelled)
        for base, state in self.states.items():
            spec = self._plan.nodes[base].map
            assert spec is not None
            if starts:
                self._fill(self._plan.nodes[base], spec, state)
            end = end_of_map(spec, _window(state))
            if end is None and cancelled and not state.running:
                end = NodeState.CANCELLED
            if end is not None:
                ends.append((state.node, self._end(state, end)))
        return ends

    def _move_files(self, *, starts: bool, cancelled: bool) -> list[tuple[Node, NodeMove]]:
        """Read the next part of each file; return the maps that end before their first child."""
        ends = []
        for file in self.files.values():
            node, end = file.node, None
            if cancelled:
                end = NodeState.CANCELLED
            elif starts:
                try:
                    read_on(file, self._ports)
                except FileFault as fault:
                    end, node.code, node.detail = NodeState.FAILED, fault.code, str(fault)
                else:
                    self._writes.files[file.node_id] = file
                    if file.is_read:
                        self._writes.new_maps.append(self._starter.map_state(node, file.items))
            if end is not None:
                node.state, node.finished_at = end.value, self._now
                ends.append((node, NodeMove(node.base, end, node.code, node.detail)))
        return ends

    def wait(self) -> bool:
        """Return True if a map has room for children that this step could not start, or that none of its
        children's ends would start: all of them ended at once; or if a file is not read to its end."""
        return any(not file.node.finished_at for file in self.files.values()) or any(
            (self._starter.left <= 0 or not state.running) and children_to_start(spec, _window(state), 1)
            for base, state in self.states.items()
            if (spec := self._plan.nodes[base].map) is not None
        )

    def _fill(self, node: NodeSpec, spec: MapSpec, state: MapState) -> None:
        # with children under way the others wait for their ends; without any, the next one fails
        fewest = 0 if state.running else min(self._starter.left, 1)
        most = max(self._starter.children_left(node.kind), fewest)
        places = children_to_start(spec, _window(state), most)
        if not places:
            return
        indices = places if state.todo is None else state.todo[places.start : places.stop]
        fault: FileFault | None = None
        try:
            items = _items(state, indices, self._ports) if spec.over is not None else {}
        except FileFault as error:
            items, fault = {}, error
        for index in indices:
            if self._costs.are_spent or self._starter.is_full:
                self._starter.left = 0
                break
            self._starter.left -= 1
            state.next_index += 1
            row = self._start(node, index, items, fault)
            if row.finished_at is None:
                state.running += 1
            elif row.state == NodeState.COMPLETED:
                state.completed += 1
            else:
                state.failed += 1
        self._writes.maps[state.node_id] = state

    def _start(self, node: NodeSpec, index: int, items: Mapping[int, Any], fault: FileFault | None) -> Node:
        names: dict[str, Any] = {INDEX: index}
        if index in items:
            names[ITEM] = items[index]
        row = self._starter.new_node(node, index=index)
        if fault is not None:
            self._starter.fail(row, fault.code, str(fault))
            return row
        try:
            scope = ChainMap(names, cast(MutableMapping[str, Any], self._scope))
            given = resolve(node.settings, scope, budget=self._costs.budget())
        except Unresolved as error:
            self._starter.fail(row, error.code, str(error))
        else:
            self._starter.start(node, row, given)
        return row

    def _end(self, state: MapState, end: NodeState) -> NodeMove:
        node = state.node
        node.state, node.finished_at = end.value, self._now
        if end is NodeState.COMPLETED:
            # children that end in this very transaction are not in the database yet
            unwritten = (*self._writes.ended_nodes.values(), *self._writes.new_nodes)
            children = [one for one in unwritten if one.base == node.base and one.index is not None]
            try:
                node.output = map_output(self._run, state, children, self._costs.budget(), self._ports)
            except OverBudget as error:
                end, node.code = NodeState.FAILED, error.code
                node.detail = f"the list of the map's outputs: {error}"
                node.state = end.value
        elif end is NodeState.FAILED:
            node.code, node.detail = MAP_FAILED, f"{state.failed} of {state.total} items failed"
            if (first := self._first_failure(state)) is not None and (why := reason_of(first)):
                node.detail += f"; {first.key} failed: {why}"
        return NodeMove(node.base, end, node.code, node.detail, node.output)

    def _first_failure(self, state: MapState) -> Node | None:
        """Return the first failed child of a map in this round, by its index."""
        base, written = state.node.base, []
        for one in (*self._writes.ended_nodes.values(), *self._writes.new_nodes):
            if one.base == base and one.index is not None and one.state == NodeState.FAILED:
                written.append(one)
        stored = Node.objects.defer("settings", "output").filter(
            run=self._run,
            base=base,
            index__isnull=False,
            round=state.node.round,
            state=NodeState.FAILED.value,
        )
        return min([*written, *stored.order_by("index")[:1]], key=lambda one: one.index or 0, default=None)


def _window(state: MapState) -> Window:
    total = state.total if state.todo is None else len(state.todo)
    return Window(total, state.total, state.next_index, state.running, state.completed, state.failed)


def _items(state: MapState, indices: Sequence[int], ports: Ports) -> dict[int, Any]:
    """Return the items of a map at these places, which ascend. Raises FileFault, StoreError."""
    found: dict[int, Any] = {}
    first = indices[0] - indices[0] % CHUNK
    for chunk in MapChunk.objects.filter(node_id=state.node_id, first__gte=first, first__lte=indices[-1]):
        found.update(enumerate(chunk.items, start=chunk.first))
    if not found and (file := MapFile.objects.filter(node_id=state.node_id).first()) is not None:
        return items_of(file, indices, ports)
    return found
