"""Firings whose job or run has ended: the next one may start, and failures in a row are counted. One whose
run is restarted, or whose job is retried, is open again (`workflows.schedules.models.reopen`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db import transaction
from django.db.models import F, OuterRef, Q, QuerySet, Subquery

from foundation.database import statements
from jobs.models import Job
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.models import Run
from workflows.schedules.domain.policy import Outcome, failures_after
from workflows.schedules.execution.fire import is_paused
from workflows.schedules.models import Firing, Schedule

PERIOD_SECONDS = 1.0
MAX_FIRINGS = 2_000
GONE = "gone"
"""End of a firing whose job or run was deleted."""
_OPEN = Firing.objects.filter(outcome=Outcome.STARTED.value, ended_at=None)


_any_open = statements.AnyRow(lambda: _OPEN)


def is_needed(ports: Ports) -> bool:
    """Return True if a firing has not ended."""
    return _any_open()


def sweep(ports: Ports) -> SweepCount:
    """looked: schedules with firings that have ended. repaired: those that this run wrote."""
    by_schedule: dict[int, list[str]] = {}
    for schedule_id, firing_id in _ended().values_list("schedule_id", "id")[:MAX_FIRINGS]:
        by_schedule.setdefault(schedule_id, []).append(firing_id)

    def close(schedule_id: int) -> bool:
        return _close(schedule_id, by_schedule[schedule_id], ports)

    return sweep_rows("ended_firings", sorted(by_schedule), close)


def _ended() -> QuerySet[Any]:
    """Return the open firings whose job or run has ended or is gone, oldest first, with `state` and `end`."""
    job, run = Job.objects.filter(id=OuterRef("job_id")), Run.objects.filter(id=OuterRef("run_id"))
    rows = _OPEN.annotate(
        job_state=Subquery(job.values("state")[:1]),
        job_end=Subquery(job.values("finished_at")[:1]),
        run_state=Subquery(run.values("state")[:1]),
        run_end=Subquery(run.values("finished_at")[:1]),
    )
    ended = Q(job_end__isnull=False) | Q(run_end__isnull=False) | Q(job_state=None, run_state=None)
    return rows.filter(ended).order_by("id")


def _close(schedule_id: int, ids: Collection[str], ports: Ports) -> bool:
    now = ports.clock.now()
    states: list[str] = []
    ended = 0
    with transaction.atomic():
        schedule = Schedule.objects.select_for_update().get(pk=schedule_id)
        # read again under the locks: a restart may have reopened one of them
        ids = list(_OPEN.select_for_update().filter(id__in=ids).order_by("id").values_list("id", flat=True))
        for one in _ended().filter(id__in=ids):
            state = one.job_state or one.run_state or GONE
            ended_at = one.job_end or one.run_end or now
            Firing.objects.filter(id=one.id).update(ended_at=ended_at, end_state=state)
            ended += 1
            if (one.end_state, state) != ("failed", "failed"):  # a second failure of one firing counts once
                states.append(state)
        failures = failures_after(schedule.failures, states)
        most = schedule.pause_after_failures
        rows = Schedule.objects.filter(pk=schedule_id)
        if most is not None and failures >= most and not is_paused(schedule, now):
            rows.update(
                failures=failures,
                version=F("version") + 1,
                paused_from=now,
                paused_until=None,
                pause_reason=f"{failures} failures in a row",
                next_at=None,
            )
        elif failures != schedule.failures:
            rows.update(failures=failures)
    return ended > 0
