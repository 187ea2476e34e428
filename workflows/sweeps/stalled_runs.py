"""Running runs in which nothing is under way: advanced again, and failed if nothing follows."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.db.models import Exists, OuterRef

from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.domain.advance import RunEnd
from workflows.domain.states import RunState
from workflows.execution.advancer import Advancer
from workflows.execution.forced_ends import end_by_force
from workflows.models import Node, Run
from workflows.tasks import advance_now

log = structlog.get_logger(__name__)

PERIOD_SECONDS = 60.0
MAX_RUNS = 200
STALLED = "stalled"


def sweep(ports: Ports) -> SweepCount:
    """looked: runs without a node under way. repaired: those that went on or were failed."""
    before = ports.clock.now() - timedelta(seconds=PERIOD_SECONDS)
    open_nodes = Node.objects.filter(run_id=OuterRef("id"), finished_at=None)
    idle = Run.objects.filter(
        ~Exists(open_nodes), state=RunState.RUNNING.value, paused_at=None, created_at__lt=before
    )
    advancer = Advancer(ports)

    def repair(run: Run) -> bool:
        advance_now(advancer, run.id)
        found = Run.objects.filter(id=run.id, steps=run.steps, state=RunState.RUNNING.value).first()
        if found is not None and not found.is_failing:
            _fail(found, ports)
        return True

    return sweep_rows("stalled_runs", idle.order_by("id")[:MAX_RUNS], repair)


def _fail(run: Run, ports: Ports) -> None:
    """Fail a run that waits for nothing: only a defect leads here, and a run that never ends hides it."""
    waiting = sorted(key for key, state in run.node_states.items() if state in ("pending", "running"))
    message = f"nothing is under way, and these nodes have not ended: {', '.join(waiting)[:500]}"
    log.error("run_stalled", run_id=run.id, nodes=waiting[:20])
    end_by_force(run, RunEnd(RunState.FAILED, code=STALLED, detail=message), ports)
