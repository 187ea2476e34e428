"""Schedules in the simulated world, and a night in which the clocks of their time zone change.

Virtual time is minutes, so the change is too: the zone's clock goes back or ahead by two minutes at a moment
of the seed. Under faults every due time is caught up, so in the end each must have started exactly one job.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

from django.db.models import F

from jobs.models import Job
from verification.schedule_laws import check_schedules
from verification.simulation.scheduler import START
from verification.simulation.size import Size
from verification.simulation.world import World
from workflows.schedules.domain import timetable
from workflows.schedules.domain.policy import CatchUp, Outcome, Overlap
from workflows.schedules.models import Firing, Schedule

ZONE = "Simulated/Night"
SHIFT = timedelta(minutes=2)
END_SECONDS = 30.0
"""Due times after the world is healed."""
MARK = "schedule"
_REFUSED = ("quota_exhausted", "tenant_queue_full", "rate_limited", "model_queue_full")


class Night(tzinfo):
    """UTC until a moment, then UTC with a shift. back: the clock goes back, and a span comes twice."""

    def __init__(self, changes_at: datetime, *, back: bool) -> None:
        self._at = changes_at.replace(tzinfo=None)
        self._shift = -SHIFT if back else SHIFT

    def utcoffset(self, local: datetime | None) -> timedelta:
        if local is None:
            return timedelta(0)
        naive = local.replace(tzinfo=None)
        first, second = sorted((self._at, self._at + self._shift))
        if naive < first:
            return timedelta(0)
        if naive >= second:
            return self._shift
        # the span comes twice, or is skipped: then a first time is one by the clock before the change
        return self._shift if local.fold else timedelta(0)

    def dst(self, local: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, local: datetime | None) -> str:
        return ZONE

    def fromutc(self, at: datetime) -> datetime:
        naive = at.replace(tzinfo=None)
        if naive < self._at:
            return naive.replace(tzinfo=self)
        local = naive + self._shift
        twice = self._shift < timedelta(0) and local < self._at
        return local.replace(tzinfo=self, fold=int(twice))


class Schedules:
    """The schedules of a world; their sweep is one of the sweepers' own."""

    def __init__(self, world: World, size: Size) -> None:
        self._world, self._count = world, size.schedules
        if not size.schedules:
            return
        chance = random.Random(f"{world.seed} schedules")
        night = Night(START + timedelta(seconds=60 * chance.randint(1, 3)), back=chance.random() < 0.5)
        timetable.find_zone = lambda name: night
        crons = ["* * * * *", "0-59 0-23 * * *", "0-59/2 0-23 * * *"]
        for number in range(size.schedules):
            by_cron = number % 2 == 0
            Schedule.objects.create(
                tenant_id=chance.choice(world.tenants),
                name=f"s{number}",
                cron=chance.choice(crons) if by_cron else "",
                timezone=ZONE if by_cron else "UTC",
                every_seconds=None if by_cron else chance.uniform(4.0, 15.0),
                anchor_at=START,
                handled_at=START,
                next_due_at=START,
                next_at=START,
                target={
                    "submit": {
                        "model": chance.choice(["zimg", "tiny", "ltx2"]),
                        "payload": {"seconds": 0.5, "fails": 0.0, MARK: number, "due": {"$ref": "due_at"}},
                        "max_retries": 3,
                    }
                },
                overlap=Overlap.ALLOW.value,
                catch_up=CatchUp.ALL.value,
                catch_up_seconds=86_400.0,
                jitter_seconds=chance.choice([0.0, 3.0]),
                created_at=START,
                updated_at=START,
            )

    def end(self) -> None:
        """Leave no due times after the next seconds, so that the world can come to rest."""
        if self._count:
            end_at = START + timedelta(seconds=self._world.scheduler.now + END_SECONDS)
            Schedule.objects.update(end_at=end_at, version=F("version") + 1)

    def are_over(self) -> bool:
        """Return True if no schedule has a due time left."""
        return not (self._count and Schedule.objects.exclude(next_at=None).exists())

    def job_count(self) -> int:
        """Return the number of jobs that schedules started."""
        return Firing.objects.filter(job_id__isnull=False).count() if self._count else 0

    def cost(self) -> dict[str, int]:
        """Return what the schedules came to."""
        return {"firings": Firing.objects.count() if self._count else 0}

    def judge(self) -> Iterator[str]:
        """Yield violations at the end."""
        if not self._count:
            return
        yield from check_schedules()
        for firing in Firing.objects.exclude(outcome=Outcome.STARTED.value).exclude(reason__in=_REFUSED):
            yield f"missed: firing {firing} is {firing.outcome}: {firing.reason} {firing.detail}"
        for schedule in Schedule.objects.exclude(next_at=None):
            yield f"lost: {schedule} still waits for {schedule.next_due_at}"
        due_of = dict(Firing.objects.values_list("job_id", "due_at"))
        started: Counter[tuple[object, object]] = Counter()
        for job in Job.objects.filter(payload__has_key=MARK):
            started[job.payload[MARK], job.payload["due"]] += 1
            due = due_of.get(job.id)
            if due is None or due.astimezone(UTC).isoformat().replace("+00:00", "Z") != job.payload["due"]:
                yield f"twice: job {job.id} for {job.payload['due']} has no firing, or another one: {due}"
        yield from (f"twice: {one} started {count} jobs" for one, count in started.items() if count > 1)
