"""Schedules in the simulated world, and a night in which the clocks of their time zone change.

Virtual time is minutes, so the change is too: the zone's clock goes back or ahead by two minutes at a moment
of the seed. Every other schedule starts and catches up whatever happens, so in the end each of its due times
must have started exactly one job; the others have all policies in turn, and people pause them.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from typing import Any

from django.db.models import F

from jobs.models import Job
from verification.schedule_laws import check_schedules
from verification.simulation.schedule_people import SchedulePeople
from verification.simulation.scheduler import START
from verification.simulation.size import Size
from verification.simulation.world import World
from workflows.schedules.domain import timetable
from workflows.schedules.domain.policy import CatchUp, Outcome, Overlap, Reason
from workflows.schedules.models import Firing, Schedule
from workflows.schedules.operations.pause import pause_schedule, resume_schedule

ZONE = "Simulated/Night"
SHIFT = timedelta(minutes=2)
END_SECONDS = 30.0
"""Due times after the world is healed."""
MARK = "schedule"
RUN_SHARE, PAUSED_SHARE = 0.3, 0.5
"""Of the schedules with policies: those that start runs of a workflow, and those that people pause."""
NOISE = 5.0
"""Largest difference between clocks that agree, in seconds."""
_BY_POLICY = (Reason.OVERLAP, Reason.SUPERSEDED, Reason.TOO_MANY_WAITING, Reason.LATE, Reason.PAUSED)
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


@dataclass(slots=True)
class _Pause:
    """When a pause was asked for, was certain, was to end, and certainly had ended."""

    asked_at: float
    begun_at: float = math.inf
    ends_at: float = math.inf
    ended_at: float = math.inf


class Schedules:
    """The schedules of a world; their sweep is one of the sweepers' own."""

    def __init__(self, world: World, size: Size) -> None:
        self._world, self._count, self._is_ending = world, size.schedules, False
        self._people: SchedulePeople | None = None
        if not size.schedules:
            return
        chance = random.Random(f"{world.seed} schedules")
        night = Night(START + timedelta(seconds=60 * chance.randint(1, 3)), back=chance.random() < 0.5)
        timetable.find_zone = lambda name: night
        if size.edited:
            self._people = SchedulePeople(world, size.edited, zone=ZONE)
        policies = random.Random(f"{world.seed} policies of schedules")
        self._pauses: dict[int, list[_Pause]] = {}
        crons = ["* * * * *", "0-59 0-23 * * *", "0-59/2 0-23 * * *"]
        for number in range(size.schedules):
            by_cron = number % 2 == 0
            tenant = chance.choice(world.tenants)
            seconds = 0.5
            rules: dict[str, Any] = {"overlap": Overlap.ALLOW, "catch_up": CatchUp.ALL}
            if not by_cron:
                rules = {
                    "overlap": policies.choice(list(Overlap)),
                    "catch_up": policies.choice(list(CatchUp)),
                }
                seconds = policies.choice([0.5, 5.0, 12.0])
            schedule = Schedule.objects.create(
                tenant_id=tenant,
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
                        "payload": {
                            "seconds": seconds,
                            "fails": 0.0,
                            MARK: number,
                            "due": {"$ref": "due_at"},
                        },
                        "max_retries": 3,
                    }
                },
                **rules,
                catch_up_seconds=86_400.0 if by_cron else policies.choice([20.0, 86_400.0]),
                jitter_seconds=chance.choice([0.0, 3.0]),
                created_at=START,
                updated_at=START,
            )
            if not by_cron and size.runs and policies.random() < RUN_SHARE:
                inputs = {"number": 9, "fails": 0.0, "items": [1, 2]}
                schedule.target = {"workflow": {"name": "chain", "inputs": inputs}}
                schedule.save()
            if not by_cron and policies.random() < PAUSED_SHARE:
                world.scheduler.spawn(world.outside, partial(self._pause, schedule, policies))

    @property
    def _edited(self) -> Collection[str]:
        """Names of the schedules that people change."""
        return self._people.names if self._people is not None else ()

    def _pause(self, schedule: Schedule, chance: random.Random) -> None:
        """Pause a schedule, and resume it, for as long as it has due times to come."""
        world, pauses = self._world, self._pauses.setdefault(schedule.pk, [])

        def switch(change: Callable[..., object]) -> None:
            world.operate(lambda ports: change(Schedule.objects.get(pk=schedule.pk), ports=ports))

        while True:
            world.scheduler.sleep(chance.uniform(5.0, 30.0))
            if self._is_ending:
                return
            pauses.append(pause := _Pause(world.scheduler.now))
            switch(pause_schedule)
            pause.begun_at = world.scheduler.now
            world.scheduler.sleep(chance.uniform(1.0, 20.0))
            pause.ends_at = world.scheduler.now
            switch(resume_schedule)
            pause.ended_at = world.scheduler.now

    def end(self) -> None:
        """Leave no due times after the next seconds, so that the world can come to rest."""
        self._is_ending = True
        if self._count:
            end_at = START + timedelta(seconds=self._world.scheduler.now + END_SECONDS)
            if self._people is not None:
                self._people.end(end_at)
            Schedule.objects.update(end_at=end_at, version=F("version") + 1)

    def are_over(self) -> bool:
        """Return True if no schedule has a due time left or will be resumed, and no firing waits or runs."""
        if not self._count:
            return True
        if any(pause.ended_at == math.inf for pauses in self._pauses.values() for pause in pauses):
            return False
        if self._people is not None and not self._people.are_done:
            return False
        started = Firing.objects.filter(outcome=Outcome.STARTED.value, ended_at=None)
        waiting = Firing.objects.filter(outcome=Outcome.WAITING.value)
        return not (Schedule.objects.exclude(next_at=None).exists() or waiting.exists() or started.exists())

    def job_count(self) -> int:
        """Return the number of jobs that schedules started."""
        if not self._count:
            return 0
        own = Firing.objects.filter(job_id__isnull=False).exclude(schedule__name__in=self._edited).count()
        return own + (self._people.job_count() if self._people is not None else 0)

    def cost(self) -> dict[str, int]:
        """Return what the schedules came to."""
        return {"firings": Firing.objects.count() if self._count else 0}

    def judge(self, *, clocks_agree: bool) -> Iterator[str]:
        """Yield violations at the end. clocks_agree: no fault has changed a clock."""
        if not self._count:
            return
        yield from check_schedules(drained=True, clocks_agree=clocks_agree, edited=self._edited)
        if self._people is not None:
            yield from self._people.judge(clocks_agree=clocks_agree)
        unstarted = Firing.objects.exclude(outcome=Outcome.STARTED.value).exclude(reason__in=_REFUSED)
        unstarted = unstarted.exclude(schedule__name__in=self._edited)
        for firing in unstarted.exclude(schedule__every_seconds__isnull=False, reason__in=_BY_POLICY):
            yield f"missed: firing {firing} is {firing.outcome}: {firing.reason} {firing.detail}"
        if clocks_agree and not self._world.forgotten.spans:
            yield from self._judge_pauses()
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

    def _judge_pauses(self) -> Iterator[str]:
        """A due time within a pause starts nothing, and one outside is not skipped for it."""
        for firing in Firing.objects.filter(schedule__in=list(self._pauses)):
            first = (firing.due_at - START).total_seconds()
            last = ((firing.until_at or firing.due_at) - START).total_seconds()
            pauses = self._pauses[firing.schedule_id]
            if firing.outcome == Outcome.STARTED:
                if any(one.begun_at + NOISE < first < one.ends_at - NOISE for one in pauses):
                    yield f"paused: firing {firing} started within a pause of its schedule"
            elif firing.reason == Reason.PAUSED and not (
                # a pause that no sweep has seen becomes one with the next pause
                any(one.asked_at - NOISE <= first for one in pauses)
                and any(last <= one.ended_at + NOISE for one in pauses)
            ):
                yield f"paused: firing {firing} is skipped for a pause, and there was none"
