"""Runs whose cancel was requested, and runs past their deadline: their nodes under way are cancelled, in
batches. Where the step that ends such a run raises, the run is ended without it."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import F

from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.domain.states import RunState
from workflows.execution.advancer import Advancer
from workflows.execution.cancelling import cancel_nodes
from workflows.execution.failed_steps import is_timed_out
from workflows.models import Run, Version
from workflows.sweeps.by_tenant import in_turn
from workflows.tasks import advance_now

PERIOD_SECONDS = 1.0
MAX_RUNS = 100


def sweep(ports: Ports) -> SweepCount:
    """looked: runs that are to end. repaired: jobs cancelled."""
    running = Run.objects.filter(state=RunState.RUNNING.value)
    overdue = running.filter(deadline_at__lte=ports.clock.now(), cancel_requested_at=None)
    if overdue.exists():  # an update takes SQLite's lock, even of no row
        # a step under way has read the run without it: it might start the `on_failure` node for a failure
        overdue.update(cancel_requested_at=F("deadline_at"), steps=F("steps") + 1)
    advancer = Advancer(ports)
    cancelled = 0

    def cancel(run: Run) -> bool:
        nonlocal cancelled
        cancelled += cancel_nodes(run, _bases(run), ports)
        advance_now(advancer, run.id)
        advancer.end_cancelled(run.id)
        return True

    ending = in_turn(running.exclude(cancel_requested_at=None), MAX_RUNS)
    count = sweep_rows("cancelling_runs", ending, cancel)
    return SweepCount(count.looked, cancelled, count.failed, count.notes)


def _bases(run: Run) -> Collection[str] | None:
    """Return the nodes to cancel; None: all. The `on_failure` node of a run past its deadline goes on."""
    if not is_timed_out(run):
        return None
    handler = Version.objects.values_list("spec__on_failure__node", flat=True).get(id=run.version_id)
    return [key for key in run.node_states if key != handler]
