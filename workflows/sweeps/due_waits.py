"""Timers that have come, and waits for an answer that have expired."""

from __future__ import annotations

from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.definition.body import DEFAULT, FAIL, SKIP
from workflows.domain.plan import NodeKind
from workflows.domain.states import NodeState
from workflows.execution.waits import EXPIRED_BY, end_waits
from workflows.models import Wait

PERIOD_SECONDS = 1.0
MAX_WAITS = 500
_STATES = {FAIL: NodeState.FAILED, SKIP: NodeState.SKIPPED, DEFAULT: NodeState.COMPLETED}


def sweep(ports: Ports) -> SweepCount:
    """looked: due waits. repaired: those that this run ended."""
    due = Wait.objects.select_related("node").filter(due_at__lte=ports.clock.now(), answered_at=None)

    def end(wait: Wait) -> bool:
        if wait.kind == NodeKind.TIMER:
            return end_waits([wait], NodeState.COMPLETED, None, by="timer", ports=ports) > 0
        state = _STATES[wait.options.get("on_expiry", FAIL)]
        answer = wait.options.get("default") if state is NodeState.COMPLETED else None
        return end_waits([wait], state, answer, by=EXPIRED_BY, ports=ports) > 0

    return sweep_rows("due_waits", due.order_by("due_at")[:MAX_WAITS], end)
