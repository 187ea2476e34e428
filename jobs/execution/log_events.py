"""Log lines of a run, written as events of its job: bounded per job, per second and per worker.

The runner never waits: lines are joined here and written by the group commit. A log that is too long keeps
its beginning and its end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from foundation.log_lines import LogLine, LogPart, RateLimit, lines_left_out, safe_text
from gpus.protocol import Clock
from jobs.models import Event

log = structlog.get_logger()

LINE_OVERHEAD = 64
"""Characters that a line counts besides its text: its time, stream and level."""
EVENT_OVERHEAD = 256
"""Characters that an event counts besides its lines, so that a job's log has a bounded number of rows."""
MAX_EVENT_CHARS = 64 * 1024
END_SHARE = 4
"""One part in so many of a run's characters is kept for its last lines."""
GROWING_PAUSES, LONGEST_PAUSE_SECONDS = 20.0, 5.0
"""A pause between two events is at least this part of the run's time, up to `LONGEST_PAUSE_SECONDS`."""
FREE_CHARS = 4000
"""Characters of a run beside the rate of all, so that its first lines are not lost in another run's flood."""
SECONDS_AT_ONCE = 10
"""A run may write the lines of so many seconds in one go."""
Write = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class LogLimits:
    """allowance: characters of this run. lines_per_second: of this run. line_chars: of a line. shared: the
    rate of all runs of the worker, in characters."""

    allowance: int
    lines_per_second: float
    line_chars: int
    shared: RateLimit


def position_in_log(job_id: str, attempt: int) -> int:
    """Return the position in the server's log up to which an attempt's lines are stored."""
    rows = Event.objects.filter(job_id=job_id, type="log").order_by("-seq").values_list("data", flat=True)
    data = rows.first() or {}
    return int(data.get("seen", 0)) if data.get("attempt") == attempt else 0


class LogEvents:
    """The buffer of one attempt's log lines. Thread-safe; `add` never raises.

    write: adds an event (kind, data) to the job, without waiting. rest_seconds: the shortest interval between
    two writes. may_write: returns False under backpressure."""

    def __init__(
        self,
        write: Write,
        clock: Clock,
        limits: LogLimits,
        *,
        rest_seconds: float,
        may_write: Callable[[], bool],
    ) -> None:
        self._write, self._clock, self._may_write = write, clock, may_write
        self._limits, self._rest = limits, rest_seconds
        self._rate = RateLimit(limits.lines_per_second, limits.lines_per_second * SECONDS_AT_ONCE)
        self._lock = threading.Lock()
        self._began = self._written_at = clock.monotonic()
        self._last_at = 0.0
        self._room = limits.allowance - limits.allowance // END_SHARE
        self._lines: list[dict[str, Any]] = []
        self._chars = 0
        self._left_out = 0
        self._free_chars = FREE_CHARS
        self._end_room = limits.allowance // END_SHARE
        self._end: deque[tuple[dict[str, Any], int]] = deque()
        self._end_chars = self._end_left_out = 0
        self._is_full = self._is_over = False
        self._seen: int | None = None
        self._part = 0

    def add(self, part: LogPart) -> None:
        """Buffer lines, and write what is due."""
        try:
            with self._lock:
                if self._is_over:
                    return
                for line in part.lines:
                    self._add(line)
                self._seen = part.seen if part.seen is not None else self._seen
                self._write_if_due()
        except Exception as error:  # a bad line must not fail the run
            log.warning("log_lines_not_taken", error=str(error))

    def write_if_due(self) -> None:
        """Write buffered lines that are due. Called every second, since no further line may come."""
        with self._lock:
            self._write_if_due()

    def end(self, trace: str = "") -> None:
        """Write the rest at the run's end. trace: traceback of the model's code, which becomes its last
        lines."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            self._mark_left_out()
            if self._chars > MAX_EVENT_CHARS // 2:
                self._write_lines()
            for line in trace.split("\n") if trace else ():
                self._admit(LogLine("stderr", line, "error"))
            self._write_lines()
            ends, self._end = self._end, deque()
            if self._end_left_out:
                self._append(self._entry(lines_left_out(self._end_left_out)))
            for entry, size in ends:
                if self._chars + size > MAX_EVENT_CHARS:
                    self._write_lines()
                self._append(entry)
            self._write_lines()

    def _add(self, line: LogLine) -> None:
        if line.left_out:
            self._left_out += line.left_out
            return
        now = self._clock.monotonic()
        size = min(len(line.text), self._limits.line_chars) + LINE_OVERHEAD
        self._free_chars -= size
        if self._rate.take(1, now) and (self._free_chars >= 0 or self._limits.shared.take(size, now)):
            self._admit(line)
        else:
            self._left_out += 1

    def _admit(self, line: LogLine) -> None:
        """Put a line into the next event, or among the last lines if the room is used up."""
        entry = self._entry(line)
        size = len(entry["text"]) + LINE_OVERHEAD
        if not self._is_full and self._room < size + LINE_OVERHEAD:
            self._is_full = True
            self._mark_left_out()
            self._append(self._entry(LogLine("log", self._full_text(), "warning")))
        if not self._is_full:
            if self._chars + size > MAX_EVENT_CHARS:  # the database is slow
                self._left_out += 1
                return
            self._mark_left_out()
            self._room -= size
            self._append(entry)
            return
        self._end_left_out += self._left_out
        self._left_out = 0
        self._end.append((entry, size))
        self._end_chars += size
        while self._end_chars > self._end_room:
            self._end_chars -= self._end.popleft()[1]
            self._end_left_out += 1

    def _mark_left_out(self) -> None:
        if not self._left_out:
            return
        if self._is_full:
            self._end_left_out += self._left_out
        else:
            self._room -= 2 * LINE_OVERHEAD
            self._append(self._entry(lines_left_out(self._left_out)))
        self._left_out = 0

    def _full_text(self) -> str:
        return (
            f"… this run's log has {self._limits.allowance} characters at most "
            "(DISPATCHER_LOG_CHARS_PER_JOB): its last lines follow when it ends"
        )

    def _entry(self, line: LogLine) -> dict[str, Any]:
        """Return the line as it is stored. Its time is never before the line before it, nor in the future:
        clocks of GPU machines differ, and any clock may be set back."""
        now = self._clock.now().timestamp()
        at = max(self._last_at, now if line.at is None else min(line.at, now))
        self._last_at = at
        entry: dict[str, Any] = {
            "at": datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds"),
            "stream": line.stream,
        }
        if line.level:
            entry["level"] = line.level
        if line.left_out:
            entry["left_out"] = line.left_out
        return {**entry, "text": safe_text(line.text, self._limits.line_chars)}

    def _append(self, entry: dict[str, Any]) -> None:
        self._lines.append(entry)
        self._chars += len(entry["text"]) + LINE_OVERHEAD

    def _write_if_due(self) -> None:
        now = self._clock.monotonic()
        pause = max(self._rest, min((now - self._began) / GROWING_PAUSES, LONGEST_PAUSE_SECONDS))
        if now - self._written_at >= pause and self._may_write():
            if not self._is_full:
                self._mark_left_out()
            self._write_lines()

    def _write_lines(self) -> None:
        if not self._lines:
            return
        self._part += 1
        self._room -= EVENT_OVERHEAD
        data: dict[str, Any] = {"part": self._part, "lines": self._lines}
        if self._seen is not None:
            data["seen"] = self._seen
        self._lines, self._chars = [], 0
        self._written_at = self._clock.monotonic()
        self._write("log", data)
