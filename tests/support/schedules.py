"""Schedules whose clock the test moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Min

from jobs.domain.states import JobState
from jobs.models import Job, Tenant
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount
from tests.support.fakes import ManualClock
from workflows.schedules.body import ScheduleBody
from workflows.schedules.models import Firing, Schedule
from workflows.schedules.operations.read import read_schedule
from workflows.schedules.operations.store import put_schedule
from workflows.sweeps import due_schedules, ended_firings

SUBMIT = {"model": "zimg", "payload": {"prompt": "x"}}


@dataclass
class Stage:
    """Schedules of one tenant, under a clock that stands still."""

    tenant: Tenant
    clock: ManualClock
    ports: Ports
    counts: list[SweepCount] = field(default_factory=list)
    due: due_schedules.DueSchedulesSweep = field(default_factory=due_schedules.DueSchedulesSweep)

    def body(self, **fields: Any) -> ScheduleBody:
        when = {} if {"every_seconds", "at"} & fields.keys() else {"cron": "* * * * *"}
        what = {} if "workflow" in fields else {"submit": SUBMIT}
        return ScheduleBody.model_validate({**when, **what, "overlap": "allow", **fields})

    def put(self, name: str = "s", **fields: Any) -> Schedule:
        row = read_schedule(self.tenant.pk, name, self.body(**fields), ports=self.ports)
        return put_schedule(row).schedule

    def sweep(self) -> SweepCount:
        """Run both sweeps, as their runner does: where they are needed."""
        if ended_firings.is_needed(self.ports):
            ended_firings.sweep(self.ports)
        return self.due(self.ports) if due_schedules.is_needed(self.ports) else SweepCount()

    def run_for(self, seconds: float) -> None:
        """Sweep ten times in so many seconds, and at each due time."""
        until = self.clock.now() + timedelta(seconds=seconds)
        while (now := self.clock.now()) < until:
            step = min(now + timedelta(seconds=max(1.0, seconds / 10)), until)
            due = Schedule.objects.filter(next_at__gt=now, next_at__lt=step).aggregate(at=Min("next_at"))[
                "at"
            ]
            self.clock.at = due or step
            self.sweep()

    def end_jobs(self, state: JobState = JobState.COMPLETED, result: Any = None, **of: Any) -> None:
        Job.objects.filter(finished_at=None, **of).update(
            state=state.value, finished_at=self.clock.now(), result=result
        )


def firings(schedule: Schedule) -> list[tuple[str, str, int]]:
    """The firings, oldest first: outcome, reason, count."""
    rows = Firing.objects.filter(schedule=schedule).order_by("due_at", "id")
    return list(rows.values_list("outcome", "reason", "count"))


def starts(schedule: Schedule) -> Sequence[datetime]:
    """The due times that were started."""
    rows = Firing.objects.filter(schedule=schedule, outcome="started")
    return list(rows.order_by("due_at").values_list("due_at", flat=True))
