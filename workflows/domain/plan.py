"""A checked definition: its nodes in the order of their needs. `workflows.definition` reads it from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from foundation.expressions import Expression

INPUTS, ITEM, INDEX, RUN, ERROR = "inputs", "item", "index", "run", "error"
RESERVED_NAMES = frozenset({INPUTS, ITEM, INDEX, RUN, ERROR})
"""Names with which references begin besides those of nodes."""


class NodeKind(StrEnum):
    MODEL = "model"
    HUMAN = "human"
    SIGNAL = "signal"
    TIMER = "timer"
    WORKFLOW = "workflow"


class NeedsRule(StrEnum):
    """When a node runs, once all nodes that it needs have ended."""

    ALL_SUCCESS = "all_success"
    """Each completed or was skipped, and not all were skipped."""
    NONE_FAILED = "none_failed"
    """None failed, and none was cancelled."""
    ALL_DONE = "all_done"
    ANY_SUCCESS = "any_success"
    """At least one completed."""


FAILURE_TOLERANT = frozenset({NeedsRule.ALL_DONE, NeedsRule.ANY_SUCCESS})


class RunningOnFailure(StrEnum):
    """What becomes of the rest of a run that can't complete any more."""

    FINISH = "finish"
    """Nodes that do not depend on the failure go on to their end."""
    CANCEL = "cancel"
    """Nodes that run are cancelled, and no other starts."""


@dataclass(frozen=True, slots=True)
class MapSpec:
    """A map. over: template of its list; None: `count` is the template of their number. max_parallel: most
    children under way. fail_at: failed children with which the map fails, as a number (int) or as a share of
    all (float)."""

    over: Any = None
    count: Any = None
    max_parallel: int = 256
    fail_at: int | float = 1


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node. settings: of its kind, a template: references in it are resolved when the node starts. options:
    of its kind too, and fixed. needs: keys of the nodes that must end first."""

    key: str
    kind: NodeKind
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    rule: NeedsRule = NeedsRule.ALL_SUCCESS
    when: Expression | None = None
    map: MapSpec | None = None


@dataclass(frozen=True)
class Plan:
    """A definition. nodes: by key, each after those that it needs. output: template of the run's output.
    on_failure: runs after the others when the run fails; None: no node does."""

    nodes: Mapping[str, NodeSpec]
    output: Any = None
    running_on_failure: RunningOnFailure = RunningOnFailure.FINISH
    on_failure: NodeSpec | None = None
    inputs: Mapping[str, Any] | bool = field(default=True)

    @property
    def all_nodes(self) -> tuple[NodeSpec, ...]:
        """Its nodes, and that of `on_failure`."""
        return (*self.nodes.values(), *(() if self.on_failure is None else (self.on_failure,)))

    @cached_property
    def needed_by(self) -> Mapping[str, tuple[str, ...]]:
        """The nodes that need each node, in order."""
        found: dict[str, list[str]] = {key: [] for key in self.nodes}
        for node in self.nodes.values():
            for need in node.needs:
                found[need].append(node.key)
        return {key: tuple(needing) for key, needing in found.items()}

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The place of each node in the order."""
        return {key: place for place, key in enumerate(self.nodes)}

    @cached_property
    def has_maps(self) -> bool:
        return any(node.map is not None for node in self.nodes.values())

    @cached_property
    def tolerated(self) -> frozenset[str]:
        """Nodes that may fail without failing the run: other nodes need them, and all of these run in spite
        of a failure."""
        return frozenset(
            key
            for key, needing in self.needed_by.items()
            if needing and all(self.nodes[one].rule in FAILURE_TOLERANT for one in needing)
        )
