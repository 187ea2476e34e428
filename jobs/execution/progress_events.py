"""What a run says of itself while it runs, on its way to the job's events: gathered, bounded, seldom written.

Who tells never waits: pieces are put together here and written by the group commit, the sooner after the
begin the closer together. A run that ends before its first write writes nothing: its result says it all.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from gpus.protocol import Clock
from gpus.runners.json_body import Unreadable, check_storable
from jobs.execution.group_commit import Writer

log = structlog.get_logger()

GROWING_PAUSES = 20.0
"""A pause is at least this part of the run's time: a run of an hour writes about 140 times."""
MAX_EVENT_CHARS = 64 * 1024
MAX_TOLD_CHARS = 1024 * 1024
"""Of a job's first attempt; what is more is counted, and is in the result. Whoever runs it after others may
tell a half, a third …: fifty tries tell less than five times this together."""
LEAST_PROGRESS = 0.01

BACKLOG = 200
"""Writes in line beyond which no news are added: a database that does not keep up is told less."""

Write = Callable[[str, Mapping[str, Any]], None]


def news_of(write: Write, writer: Writer, clock: Clock, *, tries: int, rest_seconds: float) -> RunNews:
    """Takes what a run says of itself. write: puts it into the job's events. tries: which try of its job the
    run is."""
    return RunNews(
        write,
        clock,
        rest_seconds=rest_seconds,
        allowance=MAX_TOLD_CHARS // tries,
        may_write=lambda: not writer.failing and writer.backlog < BACKLOG,
    )


class RunNews:
    """Of one attempt in this process. write: puts (kind, data) into the job's events, without waiting.
    may_write: whether it may be asked now. rest_seconds: the shortest pause. allowance: characters of
    partial output."""

    def __init__(
        self,
        write: Write,
        clock: Clock,
        *,
        rest_seconds: float,
        may_write: Callable[[], bool],
        allowance: int = MAX_TOLD_CHARS,
    ) -> None:
        self._write, self._clock, self._may_write = write, clock, may_write
        self._rest = rest_seconds
        self.allowance = allowance
        self._lock = threading.Lock()
        self._began = self._written_at = clock.monotonic()
        self._pieces: list[Any] = []
        self._chars = self._told_chars = self._left_out = self._part = 0
        self._progress: float | None = None
        self._progress_told = -math.inf

    def tell(self, kind: str, value: Any) -> None:
        """From any thread. kind: ``progress`` (0..1) or ``partial`` (any JSON value); others are ignored."""
        try:
            with self._lock:
                if kind == "progress":
                    self._progress = float(value)
                elif kind == "partial":
                    self._add(value)
                self._write_if_due()
        except Exception as error:  # whatever is told, the run goes on
            log.warning("news_not_taken", kind=kind, error=str(error))

    def look(self) -> None:
        """Now and then: what was told last must not wait for the next word."""
        with self._lock:
            self._write_if_due()

    def end(self) -> None:
        """The rest, if anything was written before."""
        with self._lock:
            if self._part:
                self._write_all()

    def _add(self, value: Any) -> None:
        try:
            check_storable(value)
            size = len(json.dumps(value, allow_nan=False))
        except (Unreadable, TypeError, ValueError):
            size = MAX_TOLD_CHARS
        if self._chars + size > MAX_EVENT_CHARS or self._told_chars + size > self.allowance:
            self._left_out += 1
            return
        self._chars += size
        self._told_chars += size
        if self._pieces:
            joined = _joined(self._pieces[-1], value)
            if joined is not None:
                self._pieces[-1] = joined
                return
        self._pieces.append(value)

    def _write_if_due(self) -> None:
        now = self._clock.monotonic()
        pause = max(self._rest, (now - self._began) / GROWING_PAUSES)
        if now - self._written_at >= pause and self._may_write():
            self._write_all()

    def _write_all(self) -> None:
        if self._pieces or self._left_out:
            self._part += 1
            data: dict[str, Any] = {"part": self._part, "output": self._pieces}
            if self._left_out:
                data["left_out"] = self._left_out
            self._pieces, self._chars, self._left_out = [], 0, 0
            self._say("partial", data)
        if self._progress is not None and abs(self._progress - self._progress_told) >= LEAST_PROGRESS:
            self._part += 1
            self._progress_told = self._progress
            self._say("progress", {"part": self._part, "progress": round(self._progress, 4)})

    def _say(self, kind: str, data: Mapping[str, Any]) -> None:
        self._written_at = self._clock.monotonic()
        self._write(kind, data)


def _joined(before: Any, value: Any) -> Any:
    """Texts that follow each other are one text, also under a name of their own. None: two pieces."""
    if isinstance(before, str) and isinstance(value, str):
        return before + value
    if (
        isinstance(before, dict)
        and isinstance(value, dict)
        and list(before) == list(value)
        and len(value) == 1
    ):
        (name,) = value
        if isinstance(before[name], str) and isinstance(value[name], str):
            return {name: before[name] + value[name]}
    return None
