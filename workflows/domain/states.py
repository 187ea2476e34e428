"""The states of runs and nodes, and the legal moves between them."""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    """`paused` and what a run waits for are fields of their own: neither is a state."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class NodeState(StrEnum):
    PENDING = "pending"
    """A node that it needs has not ended, or the run is paused."""
    RUNNING = "running"
    """Its job, sub-run, map or wait is under way."""
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Its `when` was false, all that it needs was skipped, or its wait expired with `on_expiry: skip`."""
    CANCELLED = "cancelled"
    """Cancelled with the run, or never started because of the failure of a node that it needs."""


FINAL_NODE_STATES = frozenset({NodeState.COMPLETED, NodeState.FAILED, NodeState.SKIPPED, NodeState.CANCELLED})

NODE_MOVES: dict[NodeState, frozenset[NodeState]] = {
    NodeState.PENDING: frozenset(
        {
            NodeState.RUNNING,
            NodeState.COMPLETED,  # a map over an empty list, and a result from the cache
            NodeState.FAILED,  # a reference that selects nothing
            NodeState.SKIPPED,
            NodeState.CANCELLED,
        }
    ),
    NodeState.RUNNING: FINAL_NODE_STATES,
}
"""Moves within a round. A restart makes new rows, of the next round."""


class IllegalMove(ValueError):
    """The move is not in `NODE_MOVES`."""


def check_node_move(source: NodeState, target: NodeState) -> None:
    """Check a move of a node. Raises IllegalMove."""
    if target not in NODE_MOVES.get(source, ()):
        raise IllegalMove(f"a node can't move from {source} to {target}")
