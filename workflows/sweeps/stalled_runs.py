"""Running runs in which nothing is under way: advanced again, and failed if nothing follows."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.db import transaction
from django.db.models import Exists, OuterRef

from foundation.database.connections import write_lock
from jobs.models import EndNotice
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.domain.advance import RunEnd
from workflows.domain.states import RunState
from workflows.execution.advancer import Advancer
from workflows.execution.callbacks import callback_for
from workflows.models import Node, Run, RunEvent, follower_of
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
        if Run.objects.filter(id=run.id, steps=run.steps, state=RunState.RUNNING.value).exists():
            _fail(run, ports)
        return True

    return sweep_rows("stalled_runs", idle.order_by("id")[:MAX_RUNS], repair)


def _fail(run: Run, ports: Ports) -> None:
    """Fail a run that waits for nothing: only a defect leads here, and a run that never ends hides it."""
    waiting = sorted(key for key, state in run.node_states.items() if state in ("pending", "running"))
    message = f"nothing is under way, and these nodes have not ended: {', '.join(waiting)[:500]}"
    log.error("run_stalled", run_id=run.id, nodes=waiting[:20])
    now = ports.clock.now()
    callback = callback_for(run, RunEnd(RunState.FAILED, code=STALLED, detail=message), None, now=now)
    with write_lock(1), transaction.atomic():
        mine = Run.objects.filter(id=run.id, steps=run.steps, state=RunState.RUNNING.value)
        if not mine.update(
            state=RunState.FAILED.value,
            error_code=STALLED,
            error_message=message,
            finished_at=now,
            steps=run.steps + 1,
            event_seq=run.event_seq + 1,
        ):
            return
        if callback is not None:
            callback.save(force_insert=True)
        error = {"code": STALLED, "message": message}
        RunEvent.objects.create(
            run=run, seq=run.event_seq + 1, type="failed", at=now, data={"status": "failed", "error": error}
        )
        if run.parent_node_id is not None:
            parent = Node.objects.values_list("run_id", flat=True).get(id=run.parent_node_id)
            EndNotice.objects.create(
                followed_by=follower_of(parent), ended_id=run.id, state=RunState.FAILED.value, at=now
            )
