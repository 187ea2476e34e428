"""Schedules whose due time has come, and firings that waited for an earlier one that has ended."""

from __future__ import annotations

from collections.abc import Callable

from django.db import InterfaceError, OperationalError
from django.db.models import Exists, F, OuterRef

from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.schedules.domain.policy import Outcome, Overlap
from workflows.schedules.execution.fire import (
    Overtaken,
    Unended,
    fire,
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
    due = Schedule.objects.filter(next_at__lte=ports.clock.now()).order_by("next_at")[:MAX_SCHEDULES]
    return _in_groups(list(due), ports, _fire) + _in_groups(_with_next(), ports, _start)


def _with_next() -> list[Schedule]:
    """Return the schedules with a waiting firing that nothing runs before, or that replaces what runs."""
    open_ones = Exists(_OPEN)
    rows = _WAITING.filter(may_overlap=True) | _WAITING.filter(~open_ones)
    rows |= _WAITING.filter(schedule__overlap=Overlap.CANCEL_PREVIOUS.value)
    ids = rows.order_by().values_list("schedule_id", flat=True).distinct()[:MAX_SCHEDULES]
    return list(Schedule.objects.filter(pk__in=list(ids)).order_by(F("pk")))


_Work = Callable[[Schedule, Ports, Launched, Unended], bool]


def _in_groups(schedules: list[Schedule], ports: Ports, work: _Work) -> SweepCount:
    total = SweepCount()
    for first in range(0, len(schedules), GROUP):
        group = schedules[first : first + GROUP]
        unended = unended_of([one.pk for one in group])
        launched = Launched()

        def step(
            schedule: Schedule, unended: dict[int, Unended] = unended, into: Launched = launched
        ) -> bool:
            try:
                return work(schedule, ports, into, unended.get(schedule.pk, Unended()))
            except (Overtaken, Schedule.DoesNotExist):
                return False  # another sweeper, an edit or a delete was faster
            except (OperationalError, InterfaceError):
                raise  # of the database, not of this row: it stays due
            except Exception as error:
                note_error(schedule, error, ports)
                raise

        total += sweep_rows("due_schedules", group, step)
        launched.announce(ports)
    return total


def _fire(schedule: Schedule, ports: Ports, launched: Launched, unended: Unended) -> bool:
    fire(schedule, ports, launched, unended)
    return True


def _start(schedule: Schedule, ports: Ports, launched: Launched, unended: Unended) -> bool:
    return start_waiting(schedule, ports, launched) > 0
