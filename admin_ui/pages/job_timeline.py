"""A job's timeline: one lane per attempt, from the start of its wait to its end. Pure.

Times come from the events (in commit order, by the same clock as the attempts' own times), and from the
attempts' rows where an event is missing. Waiting gets a smaller scale where it would leave no room for the
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from jobs.domain.states import LIVE_ATTEMPT_STATES, AttemptState
from jobs.events.hub import PROGRESS_EVENTS
from jobs.models import Attempt, Event

QUEUED, PAUSE, SENT, POLLING = "queued", "pause", "sent", "polling"
_LABELS = {QUEUED: "queued", PAUSE: "delayed", SENT: "running", POLLING: "running"}
_WAITS = {
    "queued": QUEUED,
    "requeued": QUEUED,
    "retried": QUEUED,
    "retrying": PAUSE,
    "scheduled": PAUSE,
    "cancelling": PAUSE,
}
_ENDS = frozenset({"completed", "failed", "cancelled", *_WAITS})
_SILENT = _ENDS | {"started", "accepted"} | PROGRESS_EVENTS
MAX_WAITING = 0.8
"""Share of the width that waiting takes at most: else a job that waited for hours would show no run."""


@dataclass(slots=True)
class Bar:
    """A span of time in a lane. kind: queued, pause (until the next attempt or the scheduled time), sent, or
    polling. end: None while it lasts. label: text for the page; empty: that of the kind. left, width: percent
    of the track."""

    kind: str
    begin: datetime
    end: datetime | None = None
    left: float = 0.0
    width: float = 0.0
    seconds: float = 0.0
    label: str = ""

    def __post_init__(self) -> None:
        self.label = self.label or _LABELS[self.kind]


@dataclass(slots=True)
class Mark:
    """A moment in a lane, such as an adoption or a cancel request. left: percent of the track."""

    kind: str
    text: str
    at: datetime
    left: float = 0.0


@dataclass(slots=True)
class Lane:
    """An attempt with the wait before it. attempt: None for a wait without an attempt (yet)."""

    attempt: Attempt | None
    bars: list[Bar] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    @property
    def is_live(self) -> bool:
        return bool(self.bars) and self.bars[-1].end is None

    @property
    def run_seconds(self) -> float:
        """Duration of the run, without the wait before it."""
        return sum(bar.seconds for bar in self.bars if bar.kind in (SENT, POLLING))


@dataclass(frozen=True, slots=True)
class Timeline:
    """All lanes of a job. is_squeezed: True if waiting has a smaller scale than running."""

    lanes: list[Lane]
    begin: datetime
    end: datetime
    is_squeezed: bool

    @property
    def seconds(self) -> float:
        return (self.end - self.begin).total_seconds()


def timeline(attempts: Sequence[Attempt], events: Sequence[Event], *, now: datetime) -> Timeline:
    """Build the timeline. attempts, events: in their order; the earliest ones may be missing."""
    lanes = {attempt.number: _lane(attempt) for attempt in attempts}
    waiting = Lane(None)
    current = waiting
    for event in events:
        number = _number(event)
        lane = lanes.get(number)
        if event.type in _ENDS:
            _close(waiting, event.at)
            current = waiting
        if event.type in _WAITS:
            waiting.bars.append(Bar(_WAITS[event.type], event.at))
        elif event.type == "started":
            _close(waiting, event.at)
            if lane is not None:
                lane.bars[:0], lane.marks[:0] = waiting.bars, waiting.marks
                current = lane
            waiting = Lane(None)
        elif event.type == "accepted" and lane is not None:
            _accept(lane, event.at)
        if event.type not in _SILENT and (lane is not None or number < 0):
            (lane or current).marks.append(Mark(event.type, _text(event), event.at))
    found = sorted(lanes.values(), key=lambda lane: lane.attempt.number if lane.attempt else 0)
    if waiting.bars or waiting.marks:
        found.append(waiting)
    return _placed(found, now)


def _number(event: Event) -> int:
    number = event.data.get("attempt") if isinstance(event.data, dict) else None
    return number if isinstance(number, int) else -1


def _lane(attempt: Attempt) -> Lane:
    kind = POLLING if attempt.state == AttemptState.WAITING else SENT
    is_live = attempt.state in LIVE_ATTEMPT_STATES
    return Lane(
        attempt,
        [Bar(kind, attempt.started_at, None if is_live else attempt.finished_at or attempt.started_at)],
    )


def _accept(lane: Lane, at: datetime) -> None:
    """Split the run at `at`: from there on the server is polled."""
    run = lane.bars[-1]
    at = max(run.begin, min(at, run.end or at))
    lane.bars[-1:] = [Bar(SENT, run.begin, at, label="starting"), Bar(POLLING, at, run.end)]


def _close(lane: Lane, at: datetime) -> None:
    if lane.bars and lane.bars[-1].end is None:
        lane.bars[-1].end = max(at, lane.bars[-1].begin)


def _text(event: Event) -> str:
    data: dict[str, Any] = event.data if isinstance(event.data, dict) else {}
    shown = {key: value for key, value in data.items() if key not in ("attempt", "status", "error")}
    return " ".join([event.type.replace("_", " "), *(f"{key} {value}" for key, value in shown.items())])


def _placed(lanes: list[Lane], now: datetime) -> Timeline:
    bars = [bar for lane in lanes for bar in lane.bars]
    moments = [at for bar in bars for at in (bar.begin, bar.end or now)]
    moments += [mark.at for lane in lanes for mark in lane.marks]
    begin, end = min(moments, default=now), max(moments, default=now)
    scale = _Scale(begin, end, [(bar.begin, bar.end or now) for bar in bars if bar.kind in (SENT, POLLING)])
    for bar in bars:
        bar.left = scale.percent(bar.begin)
        bar.width = round(scale.percent(bar.end or now) - bar.left, 3)
        bar.seconds = max(((bar.end or now) - bar.begin).total_seconds(), 0.0)
    for lane in lanes:
        for mark in lane.marks:
            mark.left = scale.percent(mark.at)
    return Timeline(lanes, begin, end, scale.is_squeezed)


class _Scale:
    """Maps moments to percent of the track, with one scale for the time of runs and one for the rest."""

    def __init__(self, begin: datetime, end: datetime, runs: list[tuple[datetime, datetime]]) -> None:
        self._begin = begin
        self._runs = _merged(runs)
        whole = (end - begin).total_seconds()
        running = sum((until - since).total_seconds() for since, until in self._runs)
        share = running / whole if whole > 0 else 1.0
        self.is_squeezed = 0 < share < 1 - MAX_WAITING
        self._per_running = self._per_waiting = 100 / whole if whole > 0 else 0.0
        if self.is_squeezed:
            self._per_running = 100 * (1 - MAX_WAITING) / running
            self._per_waiting = 100 * MAX_WAITING / (whole - running)

    def percent(self, at: datetime) -> float:
        ran = sum(max((min(until, at) - since) / timedelta(seconds=1), 0.0) for since, until in self._runs)
        waited = (at - self._begin).total_seconds() - ran
        return round(min(max(ran * self._per_running + waited * self._per_waiting, 0.0), 100.0), 3)


def _merged(spans: list[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    merged: list[tuple[datetime, datetime]] = []
    for since, until in sorted(spans):
        if merged and since <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(until, merged[-1][1]))
        elif until >= since:
            merged.append((since, until))
    return merged
