"""Runs whose hint was lost: their notices of ended nodes wait, or they have not begun; and runs whose step
raised, after a pause."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Exists, F, OuterRef, Q, QuerySet, Value
from django.db.models.functions import Concat

from jobs.models import EndNotice
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.domain.states import RunState
from workflows.execution.advancer import Advancer
from workflows.models import Run, follower_of
from workflows.sweeps.by_tenant import in_turn
from workflows.tasks import advance_now

PERIOD_SECONDS = 1.0
UNREAD_SECONDS = 1.0
"""A hint arrives sooner."""
MAX_RUNS = 100
"""Per run of the sweep: the others follow a second later."""


def sweep(ports: Ports, *, most: int = MAX_RUNS) -> SweepCount:
    """looked: runs. repaired: those that were advanced."""
    before = ports.clock.now() - timedelta(seconds=UNREAD_SECONDS)
    advancer = Advancer(ports)

    def advance(run: Run) -> bool:
        advance_now(advancer, run.id)
        return True

    due = _due(before, ports.clock.now())
    return sweep_rows("unread_notices", list(in_turn(due, most).only("id")), advance)


def _due(before: datetime, now: datetime) -> QuerySet[Run]:
    """Return the runs with notices older than that, those that were to begin before, and those whose failed
    step is to be tried again; without those that pause after one."""
    is_failing = Q(failing_step=F("steps"), failing_step__isnull=False)
    running = Run.objects.filter(~(is_failing & Q(step_retry_at__gt=now)), state=RunState.RUNNING.value)
    begin = Q(steps=0, created_at__lt=before) | is_failing
    old = EndNotice.objects.filter(at__lt=before)
    if not old.exists():
        return running.filter(begin)
    of_run = old.filter(followed_by=Concat(Value(follower_of("")), OuterRef("id")))
    return running.filter(begin | Exists(of_run))
