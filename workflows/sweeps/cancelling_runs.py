"""Runs whose cancel was requested, and runs past their deadline: their nodes under way are cancelled, in
batches. Where the step that ends such a run raises, the run is ended without it."""

from __future__ import annotations

from django.db.models import F

from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.domain.states import RunState
from workflows.execution.advancer import Advancer
from workflows.execution.cancelling import cancel_nodes
from workflows.models import Run, has_live_runs
from workflows.sweeps.by_tenant import in_turn
from workflows.tasks import advance_now

PERIOD_SECONDS = 1.0
MAX_RUNS = 100


def sweep(ports: Ports) -> SweepCount:
    """looked: runs that are to end. repaired: jobs cancelled."""
    if not has_live_runs():
        return SweepCount()
    running = Run.objects.filter(state=RunState.RUNNING.value)
    overdue = running.filter(deadline_at__lte=ports.clock.now(), cancel_requested_at=None)
    if overdue.exists():  # an update takes SQLite's lock, even of no row
        overdue.update(cancel_requested_at=F("deadline_at"))
    advancer = Advancer(ports)
    cancelled = 0

    def cancel(run: Run) -> bool:
        nonlocal cancelled
        cancelled += cancel_nodes(run, None, ports)
        advance_now(advancer, run.id)
        advancer.end_cancelled(run.id)
        return True

    ending = in_turn(running.exclude(cancel_requested_at=None), MAX_RUNS)
    count = sweep_rows("cancelling_runs", ending, cancel)
    return SweepCount(count.looked, cancelled, count.failed, count.notes)
