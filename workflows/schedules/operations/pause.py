"""Pauses and resumes schedules."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from jobs.ports import Ports
from workflows.domain.errors import PauseRefused, ScheduleExists, UnknownSchedule
from workflows.schedules.domain.policy import Outcome
from workflows.schedules.domain.timetable import UnknownTimezone
from workflows.schedules.execution.fire import is_paused, next_look
from workflows.schedules.execution.launch import text_of
from workflows.schedules.models import NO_BACKFILL, Firing, Schedule
from workflows.schedules.operations.read import set_next_due
from workflows.schedules.operations.writes import RACES, audit, write_if_unchanged


def pause_schedule(
    schedule: Schedule,
    *,
    ports: Ports,
    until: datetime | None = None,
    reason: str = "",
    operator: str | None = None,
) -> Schedule:
    """Skip the due times from now on, until a time or until it is resumed. A pause under way begins when it
    began: its due times have no row yet. Idempotent. operator: for the audit. Raises PauseRefused."""
    for _ in range(RACES):
        now = ports.clock.now()
        if until is not None and until <= now:
            raise PauseRefused(f"It is {text_of(now)}: a pause ends later than that.", pointer="/until")
        begin = schedule.paused_from
        if begin is None or not (is_paused(schedule, now) or _has_open_pause(schedule)):
            begin = now
        schedule.paused_from, schedule.paused_until, schedule.pause_reason = begin, until, reason
        values = {
            "paused_from": begin,
            "paused_until": until,
            "pause_reason": reason,
            "next_at": next_look(schedule, schedule.next_due_at),
        }
        with transaction.atomic():
            if is_written := write_if_unchanged(schedule, **values):
                audit(operator, "pause", schedule, until=until and until.isoformat(), reason=reason)
        if is_written:
            return Schedule.objects.get(pk=schedule.pk)
        schedule = _again(schedule)
    raise ScheduleExists("The schedule changes all the time. Try again.")


def _has_open_pause(schedule: Schedule) -> bool:
    """Return True if due times of the last pause have no row yet: no sweep ran since its end."""
    begin, due, until = schedule.paused_from, schedule.next_due_at, schedule.paused_until
    return begin is not None and due is not None and until is not None and begin <= due < until


def resume_schedule(schedule: Schedule, *, ports: Ports, operator: str | None = None) -> Schedule:
    """End a pause. Its due times get rows with the outcome skipped, and the count of failures begins at 0. If
    a clock was ahead, the schedule starts at its due times from now on. Idempotent. operator: for the
    audit."""
    for _ in range(RACES):
        now = ports.clock.now()
        if is_ahead(schedule, now):
            _wind_back(schedule, now, operator)
            schedule = _again(schedule)
            continue
        if schedule.paused_from is None or (
            schedule.paused_until is not None and schedule.paused_until <= now
        ):
            return schedule
        schedule.paused_until = now
        next_at = next_look(schedule, schedule.next_due_at)
        if schedule.error_code:
            next_at = now  # the sweep recomputes the due time
        with transaction.atomic():
            if is_written := write_if_unchanged(
                schedule, paused_until=now, pause_reason="", failures=0, next_at=next_at
            ):
                audit(operator, "resume", schedule)
        if is_written:
            return Schedule.objects.get(pk=schedule.pk)
        schedule = _again(schedule)
    raise ScheduleExists("The schedule changes all the time. Try again.")


def _again(schedule: Schedule) -> Schedule:
    found = Schedule.objects.filter(pk=schedule.pk).first()
    if found is None:
        raise UnknownSchedule
    return found


AHEAD = timedelta(minutes=1)
"""Clocks of hosts differ by less."""


def is_ahead(schedule: Schedule, now: datetime) -> bool:
    """Return True if due times to come count as handled: a clock was ahead, and the schedule is silent until
    the clock has passed them."""
    return schedule.handled_at > now + AHEAD


def _wind_back(schedule: Schedule, now: datetime, operator: str | None) -> None:
    """Let the due times after now be handled, unless the schedule was changed meanwhile. Those that were
    started while the clock was ahead are not started again; rows of missed and skipped ones end now."""
    changed = Schedule.objects.get(pk=schedule.pk)
    changed.handled_at = now
    try:
        set_next_due(changed)
    except UnknownTimezone:
        changed.next_due_at, changed.next_at = None, now  # the sweep writes the row
    values = {name: getattr(changed, name) for name in ("handled_at", "next_due_at", "next_at")}
    with transaction.atomic():
        if not write_if_unchanged(schedule, **values):
            return
        rows = Firing.objects.filter(schedule=schedule, backfill=NO_BACKFILL)
        rows = rows.filter(outcome__in=(Outcome.MISSED.value, Outcome.SKIPPED.value))
        rows.filter(due_at__gt=now).delete()
        for row in rows.filter(until_at__gt=now):
            try:
                dues = schedule.timetable.between(row.due_at, now, row.count)
            except UnknownTimezone:
                dues = []
            row.count, row.until_at = max(len(dues), 1), dues[-1] if len(dues) > 1 else None
            row.save(update_fields=["count", "until_at"])
        audit(operator, "wind_back", schedule, handled_at=schedule.handled_at.isoformat())
