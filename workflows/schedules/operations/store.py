"""Creates, changes and deletes schedules."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import IntegrityError, transaction

from foundation.database import statements
from foundation.database.row_limits import free_places
from foundation.ids import new_id
from workflows.domain.errors import ScheduleExists, TooManySchedules
from workflows.schedules.domain.policy import Outcome, Reason
from workflows.schedules.domain.timetable import UnknownTimezone
from workflows.schedules.models import Firing, Schedule
from workflows.schedules.operations.read import find_schedule, refuse_without_due_time, set_next_due
from workflows.schedules.operations.writes import RACES, audit, write_if_unchanged

_BODY_FIELDS = (
    "cron",
    "timezone",
    "every_seconds",
    "at",
    "target",
    "key_models",
    "overlap",
    "catch_up",
    "catch_up_seconds",
    "jitter_seconds",
    "start_at",
    "end_at",
    "pause_after_failures",
)
_MOST_DROPPED = 10_000
"""Due times that a change counts: those of a week by the minute."""


def create_schedule(schedule: Schedule, operator: str | None = None) -> Schedule:
    """Insert the row of `read_schedule`. operator: for the audit. Raises ScheduleExists, TooManySchedules,
    Problem 422."""
    refuse_without_due_time(schedule)
    most, tenant_id = settings.DISPATCHER.schedules, schedule.tenant_id
    try:
        with transaction.atomic():
            rows = Schedule.objects.filter(tenant_id=tenant_id)
            if free_places(f"schedules of {tenant_id}", rows, most) <= 0:
                raise TooManySchedules(
                    f"A tenant may have {most} schedules (DISPATCHER_SCHEDULES). Delete one, or change "
                    "one by PUT."
                )
            schedule.save(force_insert=True)
            audit(operator, "put", schedule)
    except IntegrityError:
        raise ScheduleExists(
            f"There is a schedule {schedule.name}. PUT replaces it.", pointer="/name"
        ) from None
    return schedule


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule. is_new: it did not exist before."""

    schedule: Schedule
    is_new: bool


def put_schedule(schedule: Schedule, operator: str | None = None) -> StoredSchedule:
    """Store the row of `read_schedule` in place of the one with its name; without a change, nothing is
    written. Due times that are handled stay so. Those that have come and are not handled yet start what the
    new row says; other due times than before begin now, and the open ones are skipped. operator: for the
    audit. Raises TooManySchedules, Problem 422."""
    for _ in range(RACES):
        stored = Schedule.objects.filter(tenant_id=schedule.tenant_id, name=schedule.name).first()
        if stored is None:
            try:
                return StoredSchedule(create_schedule(schedule, operator), is_new=True)
            except ScheduleExists:
                continue
        if all(getattr(stored, name) == getattr(schedule, name) for name in _BODY_FIELDS):
            return StoredSchedule(stored, is_new=False)
        changed = _merged(stored, schedule)
        refuse_without_due_time(changed)
        fields = (*_BODY_FIELDS, "handled_at", "next_due_at", "next_at", "updated_at")
        values = {name: getattr(changed, name) for name in fields}
        with transaction.atomic():
            is_written = write_if_unchanged(stored, **values, tries=0, error_code="", error_message="")
            if is_written and (row := _dropped(stored, changed)) is not None:
                statements.insert(row, ignore_conflicts=True)
            if is_written:
                audit(operator, "put", stored)
        if is_written:
            return StoredSchedule(find_schedule(schedule.tenant_id, schedule.name), is_new=False)
    raise ScheduleExists("The schedule changes all the time. Try again.")


def as_if_stored(schedule: Schedule) -> Schedule:
    """Return the row that `put_schedule` would store of this one, to preview it: the stored one of its name
    keeps its anchor, its pause and what was handled."""
    stored = Schedule.objects.filter(tenant_id=schedule.tenant_id, name=schedule.name).first()
    return schedule if stored is None else _merged(stored, schedule)


def _merged(stored: Schedule, new: Schedule) -> Schedule:
    """Return the stored schedule with the fields of the new one, and its next due time."""
    merged = copy(stored)
    for name in _BODY_FIELDS:
        setattr(merged, name, getattr(new, name))
    merged.updated_at = new.updated_at
    if _open_dues(stored, stored, new.handled_at) != _open_dues(merged, stored, new.handled_at):
        merged.handled_at = new.handled_at
    set_next_due(merged)
    return merged


def _dropped(stored: Schedule, changed: Schedule) -> Firing | None:
    """Return the row of the due times that came before a change of the timetable and that it leaves out."""
    if changed.handled_at == stored.handled_at:
        return None
    dues = _open_dues(stored, stored, changed.handled_at)
    if not dues:
        return None
    return Firing(
        id=new_id(changed.updated_at.timestamp()),
        schedule=stored,
        due_at=dues[0],
        until_at=dues[-1] if len(dues) > 1 else None,
        count=len(dues),
        outcome=Outcome.SKIPPED.value,
        reason=Reason.CHANGED.value,
        at=changed.updated_at,
    )


def _open_dues(schedule: Schedule, stored: Schedule, now: datetime) -> list[datetime] | None:
    """Return the due times of a timetable that have come and that the stored schedule has not handled; None
    in an unknown time zone."""
    try:
        after = stored.handled_at + timedelta(microseconds=1)
        return schedule.timetable.between(after, now, _MOST_DROPPED)
    except UnknownTimezone:
        return None


def delete_schedule(schedule: Schedule, operator: str | None = None) -> None:
    """Delete a schedule with its firings; jobs and runs that it started go on. operator: for the audit."""
    with transaction.atomic():
        # a lock: a firing that is added after the read of those to delete would keep the schedule
        locked = Schedule.objects.select_for_update().filter(pk=schedule.pk)
        if locked.exists() and Schedule.objects.filter(pk=schedule.pk).delete()[0]:
            audit(operator, "delete", schedule)
