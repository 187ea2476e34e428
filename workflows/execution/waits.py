"""Ends waits: of people, signals and timers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction

from foundation.database import statements
from foundation.database.connections import write_lock
from foundation.database.row_codec import new_row
from foundation.json_text import canonical_json
from jobs.models import EndNotice
from jobs.ports import Ports
from workflows.domain.errors import AnswerTooLarge
from workflows.domain.states import NodeState
from workflows.models import Node, Wait, follower_of

EXPIRED_BY, CANCELLED_BY = "expiry", "cancelled"
"""`answered_by` of waits that ended without an answer."""


def end_waits(waits: Sequence[Wait], state: NodeState, answer: Any, *, by: str, ports: Ports) -> int:
    """Do `write_ends` in a transaction of its own, and send the hints. Return how many had not ended."""
    if not waits:
        return 0  # a transaction takes SQLite's lock, even if it writes no row
    with write_lock(len(waits)), transaction.atomic():
        ended = write_ends(waits, state, answer, by=by, now=ports.clock.now())
    if ended:
        ports.wake_followers(sorted(set(ended)))
    return len(ended)


def write_ends(waits: Sequence[Wait], state: NodeState, answer: Any, *, by: str, now: datetime) -> list[str]:
    """End these waits, unless they have ended, and give their runs notices, in the caller's transaction.

    waits: with their nodes. state: of the nodes. by: user, key or sweep. Returns for each wait that had
    not ended the follower to wake after the commit.
    """
    followers = {wait.node_id: follower_of(wait.node.run_id) for wait in waits}
    ended = _lock_open(list(followers))
    Wait.objects.filter(node_id__in=ended).update(answer=answer, answered_at=now, answered_by=by[:200])
    statements.insert_all([
        new_row(EndNotice, followed_by=followers[node_id], ended_id=node_id, state=state.value, at=now)
        for node_id in ended
    ])  # fmt: skip
    return [followers[node_id] for node_id in ended]


_lock_open = statements.ReadAmong(
    (Node, "id"),
    rows=lambda ids: (
        Wait.objects.select_for_update()
        .filter(node__id__in=ids, answered_at=None)
        .order_by("node_id")
        .values_list("node_id", flat=True)
    ),
)
"""Locks the waits of these nodes that have not ended, in one order; returns their nodes."""


def size_of_answer(answer: Any, pointer: str) -> int:
    """Return the bytes of an answer, or of a signal's body, as JSON. pointer: of it in the request. Raises
    AnswerTooLarge."""
    size, most = len(canonical_json(answer).encode()), settings.DISPATCHER.workflow_answer_bytes
    if size > most:
        raise AnswerTooLarge(
            f"An answer and the body of a signal may have up to {most} bytes "
            f"(DISPATCHER_WORKFLOW_ANSWER_BYTES), not {size}. Upload larger data as an artifact and refer to "
            "it.",
            pointer=pointer,
        )
    return size
