"""Decides what becomes of due times: which are started, which were missed, and how firings may overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class Overlap(StrEnum):
    """What a firing does while an earlier one of its schedule has not ended."""

    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    QUEUE_ALL = "queue_all"
    CANCEL_PREVIOUS = "cancel_previous"
    ALLOW = "allow"


class CatchUp(StrEnum):
    """Which late due times are started."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class Outcome(StrEnum):
    """Outcomes of a due time."""

    WAITING = "waiting"
    STARTED = "started"
    SKIPPED = "skipped"
    MISSED = "missed"


class Reason(StrEnum):
    """Why a due time was not started; besides these, the code of the refused submit or run."""

    OVERLAP = "overlap"
    SUPERSEDED = "superseded"
    """A newer firing took its place in the queue."""
    TOO_MANY_WAITING = "too_many_waiting"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    """Its backfill was cancelled while it waited."""
    CHANGED = "changed"
    """A change of the timetable came first."""
    LATE = "late"
    UNKNOWN_TIMEZONE = "unknown_timezone"
    ERROR = "internal_error"


@dataclass(frozen=True, slots=True)
class Lateness:
    """The rules for due times that have come. grace_seconds: a due time up to so late is on time. jitter:
    added to each due time. paused_from, paused_until: due times in between are skipped."""

    catch_up: CatchUp
    catch_up_seconds: float
    grace_seconds: float
    jitter: timedelta = timedelta()
    paused_from: datetime | None = None
    paused_until: datetime | None = None

    def patience_seconds(self) -> float:
        """Return how late a due time may be started."""
        caught_up = 0.0 if self.catch_up is CatchUp.NONE else self.catch_up_seconds
        return max(self.grace_seconds, caught_up)

    def is_too_late(self, due: datetime, now: datetime) -> bool:
        """Return True if a due time is not started any more, whatever comes after it."""
        return self.late_seconds(due, now) > self.patience_seconds()

    def late_seconds(self, due: datetime, now: datetime) -> float:
        """Return how late a due time is, beyond its jitter."""
        return (now - due - self.jitter).total_seconds()

    def _is_paused(self, due: datetime) -> bool:
        if self.paused_from is None or due < self.paused_from:
            return False
        return self.paused_until is None or due < self.paused_until


@dataclass(frozen=True, slots=True)
class Judged:
    """Due times with the same fate, which follow each other. reason: None: to be started; then it is one."""

    first: datetime
    last: datetime
    count: int
    reason: Reason | None = None


def judge(dues: Sequence[datetime], now: datetime, rules: Lateness, *, are_all: bool) -> list[Judged]:
    """Return what becomes of due times that have come, in order.

    are_all: there is none after these that has come, too.
    """
    found: list[Judged] = []
    for place, due in enumerate(dues):
        is_newest = are_all and place == len(dues) - 1
        reason = _reason(due, now, rules, is_newest=is_newest)
        before = found[-1] if found else None
        if reason is not None and before is not None and before.reason is reason:
            found[-1] = Judged(before.first, due, before.count + 1, reason)
        else:
            found.append(Judged(due, due, 1, reason))
    return found


def _reason(due: datetime, now: datetime, rules: Lateness, *, is_newest: bool) -> Reason | None:
    if rules._is_paused(due):
        return Reason.PAUSED
    late = rules.late_seconds(due, now)
    if late <= rules.grace_seconds:
        return None
    if rules.catch_up is CatchUp.ALL or (rules.catch_up is CatchUp.LAST and is_newest):
        return None if late <= rules.catch_up_seconds else Reason.LATE
    return Reason.LATE


class Step(StrEnum):
    """What a firing does that is to be started."""

    START = "start"
    WAIT = "wait"
    REPLACE = "replace"
    """It waits in place of all that wait, and what runs is cancelled."""
    SKIP = "skip"
    FULL = "full"
    """Skipped, because too many wait."""


def step_of(overlap: Overlap, *, running: int, waiting: int, most_waiting: int) -> Step:
    """Return what a firing does. running, waiting: earlier firings of its schedule."""
    if overlap is Overlap.ALLOW or not (running or waiting):
        return Step.START
    if overlap is Overlap.SKIP:
        return Step.SKIP
    if overlap is Overlap.CANCEL_PREVIOUS:
        return Step.REPLACE
    if overlap is Overlap.QUEUE_ONE:
        return Step.SKIP if waiting else Step.WAIT
    return Step.FULL if waiting >= most_waiting else Step.WAIT


def failures_after(before: int, ends: Iterable[str]) -> int:
    """Return the failures in a row after these ends (states of jobs and runs), oldest first. A cancel counts
    neither way."""
    count = before
    for state in ends:
        if state == "completed":
            count = 0
        elif state == "failed":
            count += 1
    return count
