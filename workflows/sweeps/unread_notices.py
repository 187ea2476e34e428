"""Runs whose hint was lost: their notices of ended nodes wait, or they have not begun."""

from __future__ import annotations

from datetime import timedelta

from jobs.models import EndNotice
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.domain.states import RunState
from workflows.execution.advancer import Advancer
from workflows.models import Run, has_live_runs
from workflows.tasks import advance_now

PERIOD_SECONDS = 1.0
UNREAD_SECONDS = 1.0
"""A hint arrives sooner."""
MAX_RUNS = 100
"""Per run of the sweep: the others follow a second later."""


def sweep(ports: Ports) -> SweepCount:
    """looked: runs. repaired: those that were advanced."""
    if not has_live_runs():
        return SweepCount()
    before = ports.clock.now() - timedelta(seconds=UNREAD_SECONDS)
    unread = EndNotice.objects.filter(at__lt=before).values_list("followed_by", flat=True)
    run_ids = {follower.removeprefix("run:") for follower in unread[: 5 * MAX_RUNS]}
    begun = Run.objects.filter(state=RunState.RUNNING.value, steps=0, created_at__lt=before)
    run_ids |= set(begun.values_list("id", flat=True)[:MAX_RUNS])
    advancer = Advancer(ports)

    def advance(run_id: str) -> bool:
        advance_now(advancer, run_id)
        return True

    return sweep_rows("unread_notices", sorted(run_ids)[:MAX_RUNS], advance)
