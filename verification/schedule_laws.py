"""Laws of schedules: each due time has one firing, and each firing that started has one job or run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from datetime import timedelta

from jobs.models import Job
from workflows.models import Run
from workflows.schedules.domain.policy import Outcome
from workflows.schedules.models import NO_BACKFILL, Firing, Schedule

MOST = 100_000
"""Due times of one schedule that are compared."""


def check_schedules(tenants: Collection[int] | None = None) -> Iterator[str]:
    """Yield violations; for schedules whose due times were not edited, and firings that were not deleted.
    tenants: ids; None: all.

    (14) Each due time up to `handled_at` is in exactly one firing of its schedule. (15) A firing names a job
    or run that exists, iff it started one; no two name the same.
    """
    schedules, firings = Schedule.objects.order_by("pk"), Firing.objects.order_by("id")
    if tenants is not None:
        schedules = schedules.filter(tenant__in=tenants)
        firings = firings.filter(schedule__tenant__in=tenants)
    for schedule in schedules:
        yield from _due_times(schedule)
    jobs = set(Job.objects.values_list("id", flat=True))
    runs = set(Run.objects.values_list("id", flat=True))
    named = Counter(
        one for pair in firings.values_list("job_id", "run_id") for one in pair if one is not None
    )
    yield from (f"(15) {one} was started by {count} firings" for one, count in named.items() if count > 1)
    for firing in firings:
        started = firing.outcome == Outcome.STARTED
        if started != (firing.job_id in jobs or firing.run_id in runs):
            yield f"(15) firing {firing} is {firing.outcome}, with job {firing.job_id}, run {firing.run_id}"


def _due_times(schedule: Schedule) -> Iterator[str]:
    first = schedule.created_at + timedelta(microseconds=1)
    dues = schedule.timetable.between(first, schedule.handled_at, MOST)
    fired: Counter[object] = Counter()
    for firing in Firing.objects.filter(schedule=schedule, backfill=NO_BACKFILL):
        last = firing.until_at or firing.due_at
        inside = [due for due in dues if firing.due_at <= due <= last]
        if len(inside) != firing.count or firing.due_at not in inside:
            yield f"(14) firing {firing} has the count {firing.count} for {len(inside)} due times"
        fired.update(inside)
    for due in dues:
        if fired[due] != 1:
            yield f"(14) {schedule} has {fired[due]} firings of {due}"
