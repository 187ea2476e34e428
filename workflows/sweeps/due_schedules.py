"""Schedules whose due time has come, and firings that waited for an earlier one that has ended."""

from __future__ import annotations

from collections.abc import Callable

from django.db import InterfaceError, OperationalError
from django.db.models import Exists, OuterRef

from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.schedules.domain.policy import Outcome, Overlap
from workflows.schedules.execution.fire import (
    Overtaken,
    fire,
    fire_together,
    note_error,
    start_waiting,
    unended_of,
)
from workflows.schedules.execution.launch import Launched
from workflows.schedules.models import Firing, Schedule

PERIOD_SECONDS = 1.0
MAX_SCHEDULES = 500
"""Per run of the sweep: the others follow a second later."""
GROUP = 50
"""Schedules whose tickets are pushed together."""
_WAITING = Firing.objects.filter(outcome=Outcome.WAITING.value)
_OPEN = Firing.objects.filter(schedule=OuterRef("schedule"), outcome=Outcome.STARTED.value, ended_at=None)


def is_needed(ports: Ports) -> bool:
    """Return True if a schedule is due or a firing waits."""
    return Schedule.objects.filter(next_at__lte=ports.clock.now()).exists() or _WAITING.exists()


def sweep(ports: Ports) -> SweepCount:
    """looked: due schedules, and those with a firing that may start. repaired: those that were written."""
    due = Schedule.objects.filter(next_at__lte=ports.clock.now()).order_by("next_at")
    ids = list(due.values_list("pk", flat=True)[:MAX_SCHEDULES])
    return _in_groups(ids, ports, _fire) + _in_groups(_with_next(), ports, _start)


def _with_next() -> list[int]:
    """Return the keys of schedules with a waiting firing that nothing runs before, or that replaces what
    runs."""
    open_ones = Exists(_OPEN)
    rows = _WAITING.filter(may_overlap=True) | _WAITING.filter(~open_ones)
    rows |= _WAITING.filter(schedule__overlap=Overlap.CANCEL_PREVIOUS.value)
    return sorted(rows.order_by().values_list("schedule_id", flat=True).distinct()[:MAX_SCHEDULES])


_Work = Callable[[list[Schedule], Ports, Launched], SweepCount]


def _in_groups(keys: list[int], ports: Ports, work: _Work) -> SweepCount:
    """Work on schedules in groups, whose rows are read when their turn comes: another sweeper may have been
    faster."""
    total = SweepCount()
    for first in range(0, len(keys), GROUP):
        launched = Launched()
        total += work(_read(keys[first : first + GROUP]), ports, launched)
        launched.announce(ports)
    return total


def _read(keys: list[int]) -> list[Schedule]:
    return list(Schedule.objects.filter(pk__in=keys).order_by("pk"))


def _fire(schedules: list[Schedule], ports: Ports, launched: Launched) -> SweepCount:
    now = ports.clock.now()
    due = [one for one in schedules if one.next_at is not None and one.next_at <= now]
    alone = fire_together(due, ports, launched, unended_of([one.pk for one in due]))

    def fire_alone(schedule: Schedule) -> None:
        fire(schedule, ports, launched)

    done = SweepCount(len(due) - len(alone), len(due) - len(alone))
    return done + _each(_read(sorted(alone)), ports, fire_alone)


def _start(schedules: list[Schedule], ports: Ports, launched: Launched) -> SweepCount:
    return _each(schedules, ports, lambda schedule: start_waiting(schedule, ports, launched))


def _each(schedules: list[Schedule], ports: Ports, act: Callable[[Schedule], object]) -> SweepCount:
    def step(schedule: Schedule) -> bool:
        try:
            act(schedule)
        except (Overtaken, Schedule.DoesNotExist):
            return False  # another sweeper, an edit or a delete was faster
        except (OperationalError, InterfaceError):
            raise  # of the database, not of this row: it stays due
        except Exception as error:
            note_error(schedule, error, ports)
            raise
        return True

    return sweep_rows("due_schedules", schedules, step)
