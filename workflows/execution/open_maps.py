"""The maps of a run that are under way: their windows of children, and their ends."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from django.db.models import QuerySet

from jobs.ports import Ports
from workflows.domain.advance import NodeMove, Window, children_to_start, end_of_map
from workflows.domain.budget import TOO_LARGE, Costs, OverBudget
from workflows.domain.plan import INDEX, ITEM, MapSpec, NodeSpec, Plan
from workflows.domain.states import NodeState
from workflows.domain.template import Unresolved, resolve
from workflows.execution import reads
from workflows.execution.file_maps import FileFault, items_of, read_on
from workflows.execution.joined_outputs import keep_joined
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

    def close(self, *, cancelled: bool) -> list[tuple[Node, NodeMove]]:
        """Return the maps that end before further children start. cancelled: none starts any more."""
        ends = []
        for file in self.files.values():
            if cancelled and file.node.finished_at is None:
                ends.append(self._end_file(file, NodeState.CANCELLED))
        for base, state in self.states.items():
            if state.node.finished_at is None:
                end = end_of_map(self._map(base), _window(state))
                if cancelled and not state.running:
                    end = self._end_of_cancelled(state)
                if end is not None:
                    ends.append((state.node, self._end(state, end)))
        return ends

    def fill(self) -> list[tuple[Node, NodeMove]]:
        """Read the next part of each file, and start the next children of each map; return the maps that
        end."""
        ends = []
        for file in self.files.values():
            try:
                read_on(file, self._ports)
            except FileFault as fault:
                file.node.code, file.node.detail = fault.code, str(fault)
                ends.append(self._end_file(file, NodeState.FAILED))
            else:
                self._writes.files[file.node_id] = file
                if file.is_read:
                    self._writes.new_maps.append(self._starter.map_state(file.node, file.items))
        for base, state in self.states.items():
            if state.node.finished_at is None:
                self._fill(self._plan.nodes[base], self._map(base), state)
                if (end := end_of_map(self._map(base), _window(state))) is not None:
                    ends.append((state.node, self._end(state, end)))
        return ends

    def _map(self, base: str) -> MapSpec:
        spec = self._plan.nodes[base].map
        assert spec is not None
        return spec

    def _end_file(self, file: MapFile, end: NodeState) -> tuple[Node, NodeMove]:
        """End a map before its first child."""
        node = file.node
        node.state, node.finished_at = end.value, self._now
        return node, NodeMove(node.base, end, node.code, node.detail)

    def _end_of_cancelled(self, state: MapState) -> NodeState:
        """Return the end of a map that starts no further children. Cancelled ones do not count as failed, but
        a map without their outputs is not complete: a restart runs them again."""
        failed = sum(one.state == NodeState.FAILED for one in self._unwritten_children(state))
        failed += self._stored_failures(state).count()
        end = end_of_map(self._map(state.node.base), replace(_window(state), failed=failed))
        if end is NodeState.FAILED or (end is NodeState.COMPLETED and state.failed == failed):
            return end
        return NodeState.CANCELLED

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
            children = self._unwritten_children(state)  # they are not in the database yet
            try:
                self._join(state, children)
            except OverBudget as error:
                end, node.code = NodeState.FAILED, error.code
                node.detail = f"the list of the map's outputs: {error}"
                node.state = end.value
        elif end is NodeState.FAILED:
            node.code, node.detail = MAP_FAILED, f"{state.failed} of {state.total} items failed"
            if (first := self._first_failure(state)) is not None and (why := reason_of(first)):
                node.detail += f"; {first.key} failed: {why}"
        return NodeMove(node.base, end, node.code, node.detail, node.output)

    def _join(self, state: MapState, ended: Sequence[Node]) -> None:
        """Set the output of a map: the list, or the artifact of a list too large to be a value. ended:
        children whose ends are not written yet. Raises OverBudget, StoreError."""
        run, node, ports = self._run, state.node, self._ports
        try:
            node.output = map_output(run, state, ended, self._costs.budget(), ports)
        except OverBudget as error:
            if error.code != TOO_LARGE:
                raise
            node.output_artifact = keep_joined(run, state, ended, self._writes, ports)

    def _first_failure(self, state: MapState) -> Node | None:
        """Return the first failed child of a map in this round, by its index."""
        written = [one for one in self._unwritten_children(state) if one.state == NodeState.FAILED]
        stored = self._stored_failures(state).defer("settings", "output").order_by("index")[:1]
        return min([*written, *stored], key=lambda one: one.index or 0, default=None)

    def _unwritten_children(self, state: MapState) -> list[Node]:
        """Return the children of a map that end, or start, in this very transaction."""
        unwritten = (*self._writes.ended_nodes.values(), *self._writes.new_nodes)
        return [one for one in unwritten if one.base == state.node.base and one.index is not None]

    def _stored_failures(self, state: MapState) -> QuerySet[Node]:
        """Select the failed children of a map in this round, without those that this transaction writes."""
        return Node.objects.filter(
            run=self._run,
            base=state.node.base,
            index__isnull=False,
            round=state.node.round,
            state=NodeState.FAILED.value,
        )


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
