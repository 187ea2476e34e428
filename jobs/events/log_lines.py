"""The log lines of a job, read from its `log` events, and how they are written as text and as JSON lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from jobs.domain.access import ALL_STREAMS
from jobs.models import Event

LOG_EVENT = "log"
_READ_AT_ONCE = 50
"""Events per read; an event has at most 64 KiB of lines."""
_CURSOR = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,6}))?\Z")


class Cursor(NamedTuple):
    """The place of a line: number of its event, and of the line in it, from 1. line 0: before the first."""

    seq: int = 0
    line: int = 0

    def __str__(self) -> str:
        return f"{self.seq}.{self.line}"


START = Cursor()


def read_cursor(text: str) -> Cursor | None:
    """Return the place that a text names: ``12.3``, or ``12`` for all of that event's lines; None: not
    valid."""
    found = _CURSOR.match(text)
    return found and Cursor(int(found[1]), int(found[2]) if found[2] else 10**6)


@dataclass(frozen=True, slots=True)
class StoredLine:
    """A line of a job's log. at: ISO 8601, UTC. left_out: number of lines in whose place it stands."""

    id: Cursor
    at: str
    attempt: int
    stream: str
    level: str
    text: str
    left_out: int = 0

    def as_text(self) -> str:
        """Return the line for a terminal."""
        kind = f"{self.stream}/{self.level}" if self.level else self.stream
        return f"{self.at.replace('+00:00', 'Z')} #{self.attempt} {kind:<6} {self.text}"

    def as_json(self) -> dict[str, Any]:
        """Return the line as a JSON object."""
        found: dict[str, Any] = {
            "id": str(self.id),
            "at": self.at,
            "attempt": self.attempt,
            "stream": self.stream,
            "level": self.level or None,
            "text": self.text,
        }
        return {**found, "left_out": self.left_out} if self.left_out else found


@dataclass(frozen=True, slots=True)
class LogChoice:
    """Which lines of a job are wanted. streams: that the reader may see. attempt: 0 for all. since: lines of
    this time and later. after: lines after this place."""

    streams: frozenset[str] = ALL_STREAMS
    attempt: int = 0
    since: datetime | None = None
    after: Cursor = START

    def of(self, streams: frozenset[str]) -> LogChoice:
        """Return the same choice among these streams."""
        return replace(self, streams=streams)

    def lines_of(self, seq: int, data: Mapping[str, Any]) -> list[StoredLine]:
        """Return the wanted lines of an event of kind `LOG_EVENT`."""
        attempt, found = int(data.get("attempt", 0)), []
        if self.attempt and attempt != self.attempt:
            return []
        for number, line in enumerate(data.get("lines") or (), start=1):
            place = Cursor(seq, number)
            if place <= self.after or line["stream"] not in self.streams:
                continue
            if self.since is not None and datetime.fromisoformat(line["at"]) < self.since:
                continue
            found.append(
                StoredLine(
                    place,
                    line["at"],
                    attempt,
                    line["stream"],
                    line.get("level", ""),
                    line["text"],
                    line.get("left_out", 0),
                )
            )
        return found


def read_lines(job_id: str, choice: LogChoice) -> Iterator[StoredLine]:
    """Yield the wanted lines in their order."""
    seq = max(0, choice.after.seq - 1)
    while rows := list(_events(job_id).filter(seq__gt=seq).order_by("seq")[:_READ_AT_ONCE]):
        for row in rows:
            yield from choice.lines_of(row.seq, row.data)
        seq = rows[-1].seq


def read_last_lines(job_id: str, choice: LogChoice, most: int) -> list[StoredLine]:
    """Return the last `most` wanted lines in their order."""
    found: list[StoredLine] = []
    seq = None
    while len(found) < most:
        rows = _events(job_id).order_by("-seq")
        rows = list((rows if seq is None else rows.filter(seq__lt=seq))[:_READ_AT_ONCE])
        if not rows:
            break
        for row in rows:
            found[:0] = choice.lines_of(row.seq, row.data)
            if len(found) >= most:
                break
        seq = rows[-1].seq
    return found[-most:]


def _events(job_id: str) -> Any:
    return Event.objects.filter(job_id=job_id, type=LOG_EVENT)


def as_text(lines: Sequence[StoredLine]) -> bytes:
    """Return lines as text/plain."""
    return "".join(f"{line.as_text()}\n" for line in lines).encode()


def as_json_lines(lines: Sequence[StoredLine]) -> bytes:
    """Return lines as JSON objects, one a line."""
    return "".join(f"{json.dumps(line.as_json(), ensure_ascii=False)}\n" for line in lines).encode()
