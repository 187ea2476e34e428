"""Previews: the next fire times of a schedule, and its times in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, islice, takewhile

from workflows.schedules.domain.timetable import Timetable, UnknownTimezone, words_of
from workflows.schedules.execution.fire import is_paused
from workflows.schedules.models import Schedule

PREVIEW_MOST = 1_000


@dataclass(frozen=True, slots=True)
class FireTime:
    """A due time to come. fires_at: with the jitter. local: in the schedule's time zone."""

    due_at: datetime
    fires_at: datetime
    local: datetime


def fire_times(schedule: Schedule, count: int, now: datetime) -> Sequence[FireTime]:
    """Return the next fire times, at most so many; none during a pause without an end, and if the time zone
    is unknown."""
    if is_paused(schedule, now) and schedule.paused_until is None:
        return []
    return fire_times_if_resumed(schedule, count, now)


def fire_times_if_resumed(schedule: Schedule, count: int, now: datetime) -> Sequence[FireTime]:
    """Return the next fire times, at most so many; during a pause without an end those that it would have if
    it ended now. Empty if the time zone is unknown."""
    try:
        timetable = schedule.timetable
    except UnknownTimezone:
        return []
    jitter = schedule.jitter
    return [
        FireTime(due, due + jitter, due.astimezone(timetable.zone))
        for due in islice(_dues_to_fire(schedule, timetable, now), count)
    ]


def _dues_to_fire(schedule: Schedule, timetable: Timetable, now: datetime) -> Iterator[datetime]:
    """Yield the due times that fire from now on, with those that have come and wait for their jitter. The due
    times of a pause do not fire."""
    after = max(now - schedule.jitter, schedule.handled_at)
    begin = schedule.paused_from
    end = schedule.paused_until or now
    if begin is None or end <= after:
        return timetable.after(after)
    before = takewhile(lambda due: due < begin, timetable.after(after))
    return chain(before, timetable.after(max(after, end - timedelta(microseconds=1))))


def shown_next_due_at(schedule: Schedule, now: datetime) -> datetime | None:
    """Return the due time that is started next; None during a pause without an end. In the past: it has come,
    and waits for its jitter or for the sweep."""
    due, begin, until = schedule.next_due_at, schedule.paused_from, schedule.paused_until
    if due is None or begin is None or due < begin:
        return due
    if until is None:
        return None
    if due >= until:
        return due
    try:  # the sweep writes those of the pause as skipped
        return schedule.timetable.next_after(max(until - timedelta(microseconds=1), schedule.handled_at))
    except UnknownTimezone:
        return None


def times_in_words(schedule: Schedule) -> str:
    """Return the due times of a schedule in words."""
    if schedule.cron:
        return f"{words_of(schedule.cron)} ({schedule.timezone})"
    if schedule.every_seconds is not None:
        return f"Every {schedule.every_seconds:g} seconds"
    return f"Once, at {schedule.at:%Y-%m-%d %H:%M:%S} UTC"
