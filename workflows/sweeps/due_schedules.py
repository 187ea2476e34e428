"""Schedules whose due time has come, and firings that waited for an earlier one that has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.db.models import Exists, F, OuterRef, Q, Window
from django.db.models.functions import RowNumber

from foundation.database import statements
from foundation.database.statements import value
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.schedules.domain.policy import Outcome, Overlap, Reason
from workflows.schedules.execution.fire import (
    DEFAULT_FIRE_LIMITS,
    MAX_TRIES,
    FireLimits,
    Overtaken,
    StartsRefused,
    WaitingFailed,
    fire,
    fire_together,
    note_error,
    skip_waiting,
    start_waiting,
    unended_of,
)
from workflows.schedules.execution.launch import Launched
from workflows.schedules.models import NO_BACKFILL, OF_BACKFILL, Firing, Schedule

PERIOD_SECONDS = 1.0
GROUP = 50
"""Schedules whose tickets are pushed together."""
RUN_SECONDS = 2.0
"""After so long, a run leaves the others to the next one, which begins with other tenants'."""
MISSED_SECONDS = 0.5
"""A run goes on for so long with due times that are too late to be started."""


@dataclass(frozen=True, slots=True)
class DueLimits:
    """Limits of one run. schedules: those that it fires; the others follow a second later. missed_parts:
    further transactions for the due times of a schedule that are too late to be started. with_next:
    schedules with a firing that may start, that it considers. refused: starts of a tenant that its limits
    refuse, after which it leaves the tenant's other schedules. fire: of one transaction."""

    schedules: int = 500
    missed_parts: int = 50
    with_next: int = 2_000
    refused: int = 20
    fire: FireLimits = DEFAULT_FIRE_LIMITS


DEFAULT_LIMITS = DueLimits()


_WAITING = Firing.objects.filter(outcome=Outcome.WAITING.value)
_OPEN = Firing.objects.filter(schedule=OuterRef("schedule"), outcome=Outcome.STARTED.value, ended_at=None)


_any_due = statements.AnyRow(lambda: Schedule.objects.filter(next_at__lte=value(Schedule, "next_at", "now")))
_any_waiting = statements.AnyRow(lambda: _WAITING)


def is_needed(ports: Ports) -> bool:
    """Return True if a schedule is due or a firing waits."""
    return _any_due(now=ports.clock.now()) or _any_waiting()


class DueSchedulesSweep:
    """Remembers up to which schedule with a firing that waits it has come, and the errors in a row of such
    firings, by id."""

    def __init__(self, limits: DueLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._after = 0
        self._errors: Counter[str] = Counter()

    def __call__(self, ports: Ports) -> SweepCount:
        """looked: due schedules, and those with a firing that may start. repaired: those that were
        written."""
        total, watch = SweepCount(), _Watch(ports)
        for keys in _groups(_due(ports, self._limits.schedules)):
            total += _in_group(keys, ports, partial(_fire, watch=watch, limits=self._limits.fire))
            if watch.is_over:
                break
        if not watch.is_over:
            total += self._pass_missed(ports)
        return total + self._start_next(ports)

    def _pass_missed(self, ports: Ports) -> SweepCount:
        """Pass over due times that are too late to start, in more transactions than one. After a month down,
        a 10-second schedule has 260,000 of them before its next start."""
        total, watch = SweepCount(), _Watch(ports, MISSED_SECONDS)
        work = partial(_fire_missed, watch=watch, limits=self._limits.fire)
        for _ in range(self._limits.missed_parts):
            if not _any_due(now=ports.clock.now()):
                break
            counts = [_in_group(keys, ports, work) for keys in _groups(_due(ports, self._limits.schedules))]
            total = sum(counts, total)
            if not any(count.repaired for count in counts):  # none is left, no time is, or each one failed
                break
        return total

    # -- firings that wait -----------------------------------------------------------------------------------

    def _start_next(self, ports: Ports) -> SweepCount:
        refused: Counter[int] = Counter()
        total = SweepCount()
        if len(self._errors) > self._limits.with_next:  # most of them have started since
            self._errors.clear()

        watch = _Watch(ports)

        def start(schedules: list[Schedule], ports: Ports, launched: Launched) -> SweepCount:
            return _each(schedules, watch, lambda schedule: self._start(schedule, ports, launched, refused))

        tenants = self._with_next(ports)
        for keys in _groups(list(tenants)):
            left = [key for key in keys if refused[tenants[key]] < self._limits.refused]
            total += _in_group(left, ports, start)
            if total.looked >= self._limits.schedules or watch.is_over:
                self._after = keys[-1]
                break
        return total

    def _with_next(self, ports: Ports) -> dict[int, int]:
        """Return schedules with a waiting firing that nothing runs before, or that replaces what runs, with
        their tenants: other ones in each run, so that none keeps the others from their turn."""
        if not _WAITING.exists():  # usual, and the query below takes Django milliseconds to write
            self._after = 0
            return {}
        now = ports.clock.now()
        paused = Q(schedule__paused_from__lte=now) & (
            Q(schedule__paused_until=None) | Q(schedule__paused_until__gt=now)
        )
        replaces = Q(schedule__overlap=Overlap.CANCEL_PREVIOUS.value, backfill=NO_BACKFILL)
        own = Q(~Exists(_OPEN.exclude(OF_BACKFILL)), backfill=NO_BACKFILL)
        of_backfill = ~Q(backfill=NO_BACKFILL) & ~Exists(_OPEN.filter(OF_BACKFILL))
        is_next = Q(may_overlap=True) | own | of_backfill | replaces
        rows = _WAITING.filter(is_next, ~paused | ~Q(backfill=NO_BACKFILL), schedule=OuterRef("pk"))
        schedules = Schedule.objects.filter(Exists(rows)).order_by("pk").values_list("pk", "tenant_id")
        most = self._limits.with_next
        found = dict(schedules.filter(pk__gt=self._after)[:most])
        if len(found) == most:
            self._after = list(found)[-1]
            return found
        if self._after:
            found |= dict(schedules.filter(pk__lte=self._after)[: most - len(found)])
        self._after = list(found)[min(self._limits.refused, len(found)) - 1] if found else 0
        return found

    def _start(self, schedule: Schedule, ports: Ports, launched: Launched, refused: Counter[int]) -> bool:
        if refused[schedule.tenant_id] >= self._limits.refused:
            return False
        try:
            return start_waiting(schedule, ports, launched, self._limits.fire) > 0
        except StartsRefused as limit:
            refused[schedule.tenant_id] += 1
            return limit.started > 0
        except WaitingFailed as failed:
            self._note_failed(schedule, failed, ports)
            raise

    def _note_failed(self, schedule: Schedule, failed: WaitingFailed, ports: Ports) -> None:
        """Skip a firing that raised `MAX_TRIES` errors: the others of the schedule go on."""
        firing = failed.firing
        self._errors[firing.id] += 1
        if self._errors[firing.id] >= MAX_TRIES:
            del self._errors[firing.id]
            schedule = Schedule.objects.get(pk=schedule.pk)
            skip_waiting(schedule, firing, Reason.ERROR.value, repr(failed.__cause__), ports.clock.now())


# -- due times -----------------------------------------------------------------------------------------------


def _due(ports: Ports, most: int) -> list[int]:
    """Return the keys of due schedules, in turn by tenant."""
    due = Schedule.objects.filter(next_at__lte=ports.clock.now())
    rank = Window(RowNumber(), partition_by="tenant_id", order_by=F("next_at").asc())
    rows = due.annotate(rank=rank).order_by("rank", "next_at")
    return list(rows.values_list("pk", flat=True)[:most])


def _fire(
    schedules: list[Schedule], ports: Ports, launched: Launched, *, watch: _Watch, limits: FireLimits
) -> SweepCount:
    now = ports.clock.now()
    due = [one for one in schedules if one.next_at is not None and one.next_at <= now]
    alone = fire_together(due, ports, launched, unended_of([one.pk for one in due]), limits)

    def fire_alone(schedule: Schedule) -> bool:
        try:
            fire(schedule, ports, launched, limits=limits)
            return True
        except (Overtaken, OperationalError, InterfaceError):
            raise  # of another sweeper, or of the database, not of this row: it stays due
        except Exception as error:
            note_error(schedule, error, ports)
            raise

    done = SweepCount(len(due) - len(alone), len(due) - len(alone))
    return done + _each(_read([one.pk for one in due if one.pk in alone]), watch, fire_alone)


def _fire_missed(
    schedules: list[Schedule], ports: Ports, launched: Launched, *, watch: _Watch, limits: FireLimits
) -> SweepCount:
    """Fire those of these schedules whose next due time is too late to be started."""
    now, grace = ports.clock.now(), settings.DISPATCHER.schedule_grace_seconds
    missed = [
        one
        for one in schedules
        if one.next_due_at is not None and one.lateness(grace).is_too_late(one.next_due_at, now)
    ]
    if not missed or watch.is_over:
        return SweepCount()
    return _fire(missed, ports, launched, watch=watch, limits=limits)


# -- both ----------------------------------------------------------------------------------------------------

_Work = Callable[[list[Schedule], Ports, Launched], SweepCount]


class _Watch:
    """The time of a run, from now on."""

    def __init__(self, ports: Ports, seconds: float = RUN_SECONDS) -> None:
        self._clock = ports.clock
        self._until = ports.clock.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic() >= self._until


def _groups(keys: list[int]) -> Iterable[list[int]]:
    return (keys[first : first + GROUP] for first in range(0, len(keys), GROUP))


def _in_group(keys: list[int], ports: Ports, work: _Work) -> SweepCount:
    """Work on schedules, whose rows are read when their turn comes: another sweeper may have been faster."""
    if not keys:
        return SweepCount()
    launched = Launched()
    count = work(_read(keys), ports, launched)
    launched.announce(ports)
    return count


def _read(keys: list[int]) -> list[Schedule]:
    found = Schedule.objects.in_bulk(keys)
    return [found[key] for key in keys if key in found]


def _each(schedules: list[Schedule], watch: _Watch, act: Callable[[Schedule], bool]) -> SweepCount:
    """Act on schedules, at least on one, until the run's time is over."""

    def step(schedule: Schedule) -> bool:
        try:
            return act(schedule)
        except (Overtaken, Schedule.DoesNotExist):
            return False  # another sweeper, an edit or a delete was faster

    in_time = takewhile(lambda one: one is schedules[0] or not watch.is_over, schedules)
    return sweep_rows("due_schedules", in_time, step)
