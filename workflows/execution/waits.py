"""Ends waits: of people, signals and timers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction

from foundation.database.connections import write_lock
from jobs.models import EndNotice
from jobs.ports import Ports
from workflows.domain.states import NodeState
from workflows.models import Wait, follower_of


def end_waits(waits: Sequence[Wait], state: NodeState, answer: Any, *, by: str, ports: Ports) -> int:
    """End these waits, unless they have ended, and give their runs notices, in one transaction.

    waits: with their nodes. state: of the nodes. by: who or what ended them. Returns how many had not ended.
    """
    if not waits:
        return 0  # a transaction takes SQLite's lock, even if it writes no row
    now = ports.clock.now()
    followers = {wait.node_id: follower_of(wait.node.run_id) for wait in waits}
    with write_lock(len(waits)), transaction.atomic():
        still = Wait.objects.select_for_update().filter(node_id__in=followers, answered_at=None)
        ended = list(still.order_by("node_id").values_list("node_id", flat=True))
        Wait.objects.filter(node_id__in=ended).update(answer=answer, answered_at=now, answered_by=by[:200])
        EndNotice.objects.bulk_create(
            EndNotice(followed_by=followers[node_id], ended_id=node_id, state=state.value, at=now)
            for node_id in ended
        )
    if ended:
        ports.wake_followers(sorted({followers[node_id] for node_id in ended}))
    return len(ended)
