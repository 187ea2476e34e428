"""Folds a job's equal attempts, and the events of those, into one row each; for the job's page and the
command line. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from admin_ui.pages.job_timeline import Lane
from foundation.texts import counted
from jobs.domain.tracebacks import split_message
from jobs.models import Attempt, Event

FOLDED = 3
"""Attempts in a row from which equal ones are folded."""


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One lane, or the lanes of equal attempts after the first of them."""

    lanes: Sequence[Lane]

    @property
    def is_folded(self) -> bool:
        return len(self.lanes) > 1

    @property
    def attempts(self) -> list[Attempt]:
        return [lane.attempt for lane in self.lanes if lane.attempt is not None]

    @property
    def numbers(self) -> str:
        """The attempts' numbers, such as ``3–22``."""
        first, last = self.attempts[0].number, self.attempts[-1].number
        return str(first) if first == last else f"{first}–{last}"

    @property
    def same(self) -> str:
        """What a folded row says of its attempts' ends."""
        what = "the same error" if self.attempts[0].error_code else "the same"
        return f"{what}, {len(self.lanes)} times"

    @property
    def slots(self) -> str:
        """The slot of the attempts, or the number of their slots."""
        slots = {f"{attempt.server}/{attempt.slot}" for attempt in self.attempts}
        return slots.pop() if len(slots) == 1 else counted(len(slots), "slot")

    @property
    def longest_run_seconds(self) -> float:
        return max(lane.run_seconds for lane in self.lanes)


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event, or those of folded attempts. before: the event before the first one."""

    events: Sequence[Event]
    before: Event | None = None
    is_folded: bool = False

    @property
    def since(self) -> float | None:
        """Seconds since the event before."""
        return (self.events[0].at - self.before.at).total_seconds() if self.before else None

    @property
    def label(self) -> str:
        """The types of the events and how often each occurs: ``started ×3, retrying ×3``."""
        return ", ".join(f"{name} ×{count}" for name, count in Counter(e.type for e in self.events).items())


def fold_lanes(lanes: Sequence[Lane]) -> list[LaneRow]:
    """Return the rows of the lanes. Of `FOLDED` or more attempts in a row that ended with the same state,
    error and message, the first is a row and the others are one."""
    rows = []
    for group in _equal(lanes):
        rows.append(LaneRow(group[:1]))
        rest = group[1:]
        rows += [LaneRow(rest)] if len(group) >= FOLDED else [LaneRow([lane]) for lane in rest]
    return rows


def fold_events(events: Iterable[Event], lanes: Sequence[Lane]) -> list[EventRow]:
    """Return the rows of events, in order: one for all events in a row of folded attempts, except the last
    attempt of each fold, after which the job went on."""
    folded = {
        lane.attempt.number
        for row in fold_lanes(lanes)
        if row.is_folded
        for lane in row.lanes[:-1]
        if lane.attempt
    }
    rows: list[EventRow] = []
    number, before = 0, None
    for event in events:
        number = int(event.data.get("attempt", number))
        if number not in folded:
            rows.append(EventRow([event], before))
        elif rows and rows[-1].is_folded:
            rows[-1] = EventRow([*rows[-1].events, event], rows[-1].before, is_folded=True)
        else:
            rows.append(EventRow([event], before, is_folded=True))
        before = event
    return rows


def _equal(lanes: Sequence[Lane]) -> list[list[Lane]]:
    return [list(group) for _, group in groupby(lanes, key=_ending)]


def _ending(lane: Lane) -> tuple[object, ...]:
    attempt = lane.attempt
    if attempt is None or lane.is_live:
        return (id(lane),)
    message, _ = split_message(attempt.error_message)
    return attempt.state, attempt.error_code, message
