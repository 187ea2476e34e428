"""Timetables: the due times of a schedule, by cron expression, by period, or one time.

Cron has Debian's rules (`cronsim`). A fixed time in the hour that a change to summer time skips is due when
that hour is over; one in the hour that comes twice is due once, in the first of the two.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

MAX_CRON = 200
"""Characters of a cron expression."""
CRON_FIELDS = 5
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
"""No due times before and after: near the ends of Python's years a search overflows, and one through
thousands of years takes seconds."""
_WRONG_ORDINAL = re.compile(r"(?<!1)([123])th\b")
_ENDINGS = {"1": "st", "2": "nd", "3": "rd"}
"""cronsim has 21th, 22th and 23th."""
find_zone: Callable[[str], tzinfo] = ZoneInfo
"""The source of time zones; the simulation replaces it."""
_SECOND, _PROBE = timedelta(seconds=1), timedelta(days=1)
"""Probe: no zone has two changes of its offset in so short a time."""
_NO_ZONES = ("localtime", "posixrules", "posix/", "right/")
"""Files beside the zones that depend on the machine, or count leap seconds."""


class UnknownTimezone(ValueError):
    """The IANA time zone is not in the installed tz database."""


class CronRefused(ValueError):
    """The text is not a cron expression; the message says why."""


def zone_of(name: str) -> tzinfo:
    """Return an IANA time zone. Raises UnknownTimezone."""
    if name == "UTC":
        return UTC
    if name.startswith(_NO_ZONES):
        raise UnknownTimezone(f"{name[:64]} is not an IANA time zone.")
    try:
        return find_zone(name)
    except (KeyError, ValueError, OSError):  # a folder of zones is an OSError
        raise UnknownTimezone(
            f"There is no time zone {name[:64]}. Names are those of the tz database, such as Europe/Berlin."
        ) from None


def check_cron(text: str) -> None:
    """Check a cron expression. Raises CronRefused."""
    if len(text) > MAX_CRON:
        raise CronRefused(f"A cron expression may have up to {MAX_CRON} characters.")
    if len(text.split()) != CRON_FIELDS:
        raise CronRefused(
            f"A cron expression has {CRON_FIELDS} fields: minute, hour, day of month, month, day of week."
        )
    try:
        CronSim(text, datetime(2024, 1, 1))
    except CronSimError as error:
        raise CronRefused(f"{error} in the cron expression, or it never matches.") from None


@dataclass(frozen=True, slots=True)
class Timetable:
    """Due times. It has one of cron, every_seconds and at.

    cron: five fields, in the zone. every_seconds: from anchor on. start, end: no due times before and after;
    both inclusive.
    """

    cron: str = ""
    zone: tzinfo = UTC
    every_seconds: float | None = None
    at: datetime | None = None
    anchor: datetime | None = None
    start: datetime | None = None
    end: datetime | None = None

    def after(self, time: datetime) -> Iterator[datetime]:
        """Yield the due times after this time, in order, in UTC, up to `LATEST`."""
        time = max(time, EARLIEST)
        if self.start is not None and self.start > time:
            time = self.start - timedelta(microseconds=1)
        last = LATEST if self.end is None else min(self.end, LATEST)
        for due in self._unbounded(time) if time < last else ():
            if due > last:
                return
            yield due

    def next_after(self, time: datetime) -> datetime | None:
        """Return the first due time after this time; None: there is none."""
        return next(self.after(time), None)

    def between(self, first: datetime, last: datetime, most: int) -> list[datetime]:
        """Return the due times from first to last, both inclusive; at most so many."""
        found = []
        for due in islice(self.after(max(first, EARLIEST) - timedelta(microseconds=1)), most):
            if due > last:
                break
            found.append(due)
        return found

    def _unbounded(self, time: datetime) -> Iterator[datetime]:
        if self.cron:
            yield from self._by_cron(time)
        elif self.every_seconds is not None:
            assert self.anchor is not None
            period = timedelta(seconds=self.every_seconds)
            due = self.anchor + ((time - self.anchor) // period + 1) * period
            while True:
                yield due
                due += period
        elif self.at is not None and self.at > time:
            yield self.at

    def _by_cron(self, time: datetime) -> Iterator[datetime]:
        if self.zone is not UTC and _counts_real_time(self.cron):
            yield from _by_wall_clock(self.cron, self.zone, time)
            return
        last = time
        # cronsim drops fractions of a second, so the first one may be the time itself, or before it
        for found in CronSim(self.cron, time.astimezone(self.zone)):
            due = found.astimezone(UTC)
            if due > last:  # two times in a skipped hour are one moment
                yield due
                last = due


def _counts_real_time(cron: str) -> bool:
    """Return True if the hour or the minute begins with a star: all times that clocks show are due."""
    return any(field.startswith("*") for field in cron.split()[:2])


def _by_wall_clock(cron: str, zone: tzinfo, time: datetime) -> Iterator[datetime]:
    """Yield each moment after this time at which a clock of the zone shows a time of the expression.

    cronsim searches without a zone, from one change of the zone's offset to the next: with a zone it steps by
    whole hours, and misses times after a change by half an hour.
    """
    wall = (time + _offset(zone, time)).replace(tzinfo=None)
    while True:
        offset = _offset(zone, time)
        for found in CronSim(cron, wall):
            due = found.replace(tzinfo=UTC) - offset
            if (change := _first_change(zone, time, due)) is not None:
                time = change
                wall = (time + _offset(zone, time) - _SECOND).replace(tzinfo=None)  # the change may be due
                break
            yield due
            time = due
        else:
            return


def _first_change(zone: tzinfo, after: datetime, last: datetime) -> datetime | None:
    """Return the first moment after `after`, up to `last`, at which the zone's offset from UTC changes."""
    offset = _offset(zone, after)
    while after < last:
        low, high = after, min(after + _PROBE, last)
        if _offset(zone, high) != offset:
            break
        after = high
    else:
        return None
    while high - low > _SECOND:
        middle = low + (high - low) // 2
        low, high = (middle, high) if _offset(zone, middle) == offset else (low, middle)
    return high.replace(microsecond=0)


def _offset(zone: tzinfo, time: datetime) -> timedelta:
    return time.astimezone(zone).utcoffset() or timedelta()


def words_of(cron: str) -> str:
    """Return a cron expression in words, such as "At 06:00"."""
    words: str = CronSim(cron, datetime(2024, 1, 1)).explain()
    return _WRONG_ORDINAL.sub(lambda found: found[1] + _ENDINGS[found[1]], words)


def jitter_of(key: str, jitter_seconds: float) -> timedelta:
    """Return by how much the firings of a schedule are delayed: 0 to jitter_seconds, always the same for one
    key."""
    digest = hashlib.sha256(key.encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return timedelta(milliseconds=int(share * jitter_seconds * 1000))
