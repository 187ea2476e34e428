"""Progress and partial output of a run, written as events of its job: bounded, and at growing intervals. Log
lines have a buffer of their own (`jobs.execution.log_events`).

The runner never waits: pieces are joined here and written by the group commit. A run that ends before its
first write writes no such event, because its result is complete."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import structlog

from foundation.signed_urls import SignatureFilter, replace_signed, without_signatures
from gpus.protocol import Clock, Progress, parse_progress
from gpus.runners.transport import Unreadable, check_storable
from jobs.domain.partial_output import join_pieces, text_of
from jobs.execution.group_commit import Writer
from jobs.execution.log_events import LogEvents, LogLimits

log = structlog.get_logger()

GROWING_PAUSES = 20.0
"""A pause is at least this part of the run's time: a run of an hour writes about 140 times."""
MAX_EVENT_CHARS = 64 * 1024
MAX_OUTPUT_CHARS = 1024 * 1024
"""Characters of output in the events of a job's first attempt; the rest is counted, and is in the result. The
nth try gets 1/n of it: fifty tries together write less than five times this."""
MAX_TEXTS = 16
"""Texts of different names in the output of a run that are searched for signatures as a whole; those of
further names by event."""
LEAST_PROGRESS = 0.01
BACKLOG = 200
"""Backpressure: with more queued writes than this, no progress is written."""
Write = Callable[[str, Mapping[str, Any]], None]


def progress_events_of(
    write: Write,
    writer: Writer,
    clock: Clock,
    *,
    tries: int,
    rest_seconds: float,
    log_limits: LogLimits | None = None,
) -> ProgressEvents:
    """Return the buffer of one run.

    write: adds an event (kind, data) to the job. tries: the run's number among its job's tries, from 1.
    rest_seconds: the shortest interval between two writes. log_limits: of its log lines; None: they are
    dropped.
    """

    def may_write() -> bool:
        return not writer.failing and writer.backlog < BACKLOG

    make_logs = None
    if log_limits is not None:
        make_logs = partial(
            LogEvents, write, clock, log_limits, rest_seconds=rest_seconds, may_write=may_write
        )
    return ProgressEvents(
        write,
        clock,
        rest_seconds=rest_seconds,
        allowance=MAX_OUTPUT_CHARS // tries,
        may_write=may_write,
        make_logs=make_logs,
    )


class ProgressEvents:
    """The buffer of one attempt's progress. Thread-safe.

    write: adds an event (kind, data) to the job, without waiting. rest_seconds: the shortest interval between
    two writes. may_write: returns False under backpressure. allowance: characters of partial output.
    make_logs: makes the buffer of log lines, for the first one; None: they are dropped."""

    def __init__(
        self,
        write: Write,
        clock: Clock,
        *,
        rest_seconds: float,
        may_write: Callable[[], bool],
        allowance: int = MAX_OUTPUT_CHARS,
        make_logs: Callable[[], LogEvents] | None = None,
    ) -> None:
        self._write, self._clock, self._may_write = write, clock, may_write
        self._rest = rest_seconds
        self.allowance = allowance
        self._make_logs = make_logs
        self._logs: LogEvents | None = None
        self._lock = threading.Lock()
        self._began = self._written_at = clock.monotonic()
        self._pieces: list[Any] = []
        self._chars = self._written_chars = self._left_out = self._part = 0
        self._signatures: dict[str | None, SignatureFilter] = {}
        self._progress: Progress | None = None
        self._progress_written = Progress(-math.inf)

    def add(self, kind: str, value: Any) -> None:
        """Buffer a value, and write the due events. kind: ``progress`` (0..1, or an object with a text),
        ``partial`` (any JSON value) or ``log`` (`LogPart`); other kinds are ignored."""
        if kind == "log":
            if (logs := self._buffer_of_logs()) is not None:
                logs.add(value)
            return
        try:
            with self._lock:
                if kind == "progress":
                    self._progress = parse_progress(value) or self._progress
                elif kind == "partial":
                    self._add_output(value)
                self._write_if_due()
        except Exception as error:  # bad progress must not fail the run
            log.warning("progress_rejected", kind=kind, error=str(error))

    def write_if_due(self) -> None:
        """Write buffered progress that is due. Called every second, since no further progress may come."""
        with self._lock:
            self._write_if_due()
        if self._logs is not None:
            self._logs.write_if_due()

    def end(self, trace: str = "") -> None:
        """Write the rest at the run's end, if anything was written before, and all log lines. trace:
        traceback of the model's code."""
        with self._lock:
            if self._part:
                self._write_all()
        logs = self._buffer_of_logs() if trace else self._logs
        self._make_logs = None
        if logs is not None:
            logs.end(trace)

    def _buffer_of_logs(self) -> LogEvents | None:
        """Return the buffer of log lines; None if lines are dropped, or the run has ended without one."""
        with self._lock:
            if self._logs is None and self._make_logs is not None:
                self._logs = self._make_logs()
            return self._logs

    def _add_output(self, value: Any) -> None:
        try:
            check_storable(value)
            size = len(json.dumps(value, allow_nan=False))
        except (Unreadable, TypeError, ValueError):
            size = MAX_OUTPUT_CHARS
        if self._chars + size > MAX_EVENT_CHARS or self._written_chars + size > self.allowance:
            self._left_out += 1
            return
        self._chars += size
        self._written_chars += size
        self._pieces.append(value)

    def _write_if_due(self) -> None:
        now = self._clock.monotonic()
        pause = max(self._rest, (now - self._began) / GROWING_PAUSES)
        if now - self._written_at >= pause and self._may_write():
            self._write_all()

    def _write_all(self) -> None:
        if self._pieces or self._left_out:
            self._part += 1
            data: dict[str, Any] = {
                "part": self._part,
                "output": [self._without_signatures(piece) for piece in join_pieces(self._pieces)],
            }
            if self._left_out:
                data["left_out"] = self._left_out
            self._pieces, self._chars, self._left_out = [], 0, 0
            self._write_event("partial", data)
        if self._progress is not None and _differ(self._progress, self._progress_written):
            self._part += 1
            self._progress_written = self._progress
            found: dict[str, Any] = {"part": self._part, "progress": round(self._progress.value, 4)}
            if self._progress.text:
                found["text"] = self._progress.text
            self._write_event("progress", found)

    def _without_signatures(self, piece: Any) -> Any:
        """Return a joined piece without signatures of URLs, also without one that is cut in two by other
        pieces or by events between its parts."""
        stream = text_of(piece)
        if stream is None:
            return replace_signed(piece, without_signatures)
        name, text = stream
        found = self._signatures.get(name)
        if found is None:
            found = SignatureFilter()
            if len(self._signatures) < MAX_TEXTS:
                self._signatures[name] = found
        shown = found.filter(text)
        return shown if name is None else {without_signatures(name): shown}

    def _write_event(self, kind: str, data: Mapping[str, Any]) -> None:
        self._written_at = self._clock.monotonic()
        self._write(kind, data)


def _differ(one: Progress, other: Progress) -> bool:
    return abs(one.value - other.value) >= LEAST_PROGRESS or one.text != other.text
