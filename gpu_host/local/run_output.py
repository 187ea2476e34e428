"""What a run's code writes, as log lines: prints by the run's thread, and the lines of `ctx.log`.

`OutputRouter` takes the place of sys.stdout and sys.stderr; each run has a `LineCollector`, which drops what
is beyond its rate and never blocks on a reader.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from foundation.log_lines import (
    MAX_LINE_CHARS,
    LogLine,
    RateLimit,
    level_of,
    lines_left_out,
    overwritten,
    safe_text,
)

LINES_PER_SECOND, LINES_AT_ONCE = 100, 500
"""Lines of one run: as a rate, and in one go."""
CHARS_PER_SECOND, CHARS_AT_ONCE = 128 * 1024, 512 * 1024
"""Characters of all runs of a process."""
FREE_CHARS = 2000
"""Characters of a run beside that rate, so that its first lines are not lost in another run's flood."""
BATCH_SECONDS = 0.25
FULL_SECONDS = 0.1
"""Once the rate is used up, all is dropped for so long."""
MAX_FIELDS_CHARS = 4096
_MAX_BATCH = 500

Emit = Callable[[list[LogLine]], None]


def shared_rate() -> RateLimit:
    """Return the limit that all runs of a process share."""
    return RateLimit(CHARS_PER_SECOND, CHARS_AT_ONCE)


class LineCollector:
    """The log lines of one run. Thread-safe; never raises.

    emit: receives the lines in order, in batches. rate: that all runs share. batch_seconds: the shortest time
    between two batches; what is left is emitted by `flush`.
    """

    def __init__(self, emit: Emit, rate: RateLimit, *, batch_seconds: float = BATCH_SECONDS) -> None:
        self._emit, self._shared, self._batch_seconds = emit, rate, batch_seconds
        self._lines = RateLimit(LINES_PER_SECOND, LINES_AT_ONCE)
        self._lock = threading.RLock()  # a finalizer may print while a line is taken
        self._rest = {"stdout": "", "stderr": ""}
        self._skips = {"stdout": False, "stderr": False}
        self._batch: list[LogLine] = []
        self._dropped = 0
        self._free_chars = FREE_CHARS
        self._emitted_at = self._full_until = -1e9

    def write(self, stream: str, text: str) -> None:
        """Take a piece of what was written. stream: stdout or stderr."""
        try:
            with self._lock:
                if time.monotonic() < self._full_until:  # a flood must cost its run next to nothing
                    self._drop(stream, text)
                    return
                self._write(stream, text)
                self._emit_if_due()
        except Exception:
            return

    def log(self, text: str, fields: Mapping[str, Any], *, stream: str = "log") -> None:
        """Take a line of `ctx.log`. fields: are added to its text, and ``level`` is its level."""
        with suppress(Exception), self._lock:
            level = level_of(fields.get("level"))
            rest = {name: value for name, value in fields.items() if not (level and name == "level")}
            for line in (text + _fields_text(rest)).split("\n", LINES_AT_ONCE)[:LINES_AT_ONCE]:
                self._add(stream, line, level)
            self._emit_if_due()

    def flush(self, *, final: bool = False) -> None:
        """Emit what was taken. final: also lines without an end; the run is over."""
        with suppress(Exception), self._lock:
            for stream in self._rest if final else ():
                rest, self._rest[stream] = self._rest[stream], ""
                if rest:
                    self._add(stream, rest)
            self._emit_all(with_count=final)

    def _write(self, stream: str, text: str) -> None:
        if self._skips[stream]:  # in the middle of a line that was dropped
            _, end, text = text.partition("\n")
            self._skips[stream] = not end
        while text:
            piece, end, text = text.partition("\n")
            rest = self._rest[stream]
            # a line without an end must not grow, nor be copied at each piece
            rest = rest + piece[: MAX_LINE_CHARS + 1] if len(rest) <= MAX_LINE_CHARS else rest
            if not end:
                self._rest[stream] = overwritten(rest)
                return
            self._rest[stream] = ""
            if not self._add(stream, rest) and text:
                self._drop(stream, text)
                return

    def _drop(self, stream: str, text: str) -> None:
        was_counted, goes_on = self._skips[stream], not text.endswith("\n")
        if self._rest[stream]:  # its beginning is dropped with it
            self._rest[stream] = ""
        self._dropped += text.count("\n") + goes_on - was_counted
        self._skips[stream] = goes_on

    def _add(self, stream: str, text: str, level: str = "") -> bool:
        """Take a whole line; return False if the rate is used up."""
        now, size = time.monotonic(), min(len(text), MAX_LINE_CHARS)
        if not (self._lines.take(1, now) and (self._take_free(size) or self._shared.take(size, now))):
            self._dropped += 1
            self._full_until = now + FULL_SECONDS
            return False
        if self._dropped:
            self._batch.append(lines_left_out(self._dropped)._replace(at=time.time()))
            self._dropped = 0
        self._batch.append(LogLine(stream, safe_text(overwritten(text).rstrip()), level, time.time()))
        return True

    def _take_free(self, size: int) -> bool:
        self._free_chars -= size
        return self._free_chars >= 0

    def _emit_if_due(self) -> None:
        if time.monotonic() - self._emitted_at >= self._batch_seconds:
            self._emit_all()

    def _emit_all(self, *, with_count: bool = False) -> None:
        if with_count and self._dropped:
            self._batch.append(lines_left_out(self._dropped)._replace(at=time.time()))
            self._dropped = 0
        batch, self._batch = self._batch, []
        self._emitted_at = time.monotonic()
        for first in range(0, len(batch), _MAX_BATCH):
            self._emit(batch[first : first + _MAX_BATCH])


def _fields_text(fields: Mapping[str, Any]) -> str:
    """Return ``  name=value`` for each field; their names only if they are too long."""
    if not fields:
        return ""
    values = "".join(f" {name}={_value_text(value)}" for name, value in fields.items())
    if len(values) > MAX_FIELDS_CHARS:
        return f" (too long: {', '.join(sorted(fields)[:20])})"
    return values


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) and value.isalnum() else json.dumps(value, default=repr)


class OutputRouter:
    """Routes sys.stdout and sys.stderr to the run whose code writes.

    adopts_threads: what other threads write belongs to the run, if only one runs. Forked processes and what
    bypasses Python's streams write to the original streams.
    """

    def __init__(self, *, adopts_threads: bool) -> None:
        self._adopts_threads = adopts_threads
        self._by_thread: dict[int, LineCollector] = {}
        self._own = threading.local()
        self._pid = os.getpid()
        self._installs = 0
        self._before: tuple[Any, Any] = (None, None)
        self._ours: tuple[Any, Any] = (None, None)

    @property
    def is_installed(self) -> bool:
        return self._installs > 0

    def install(self) -> Callable[[], None]:
        """Replace sys.stdout and sys.stderr; return a function that puts them back after the last call of
        it."""
        # also where something else has taken their place since the last call
        if not self._installs or (sys.stdout, sys.stderr) != self._ours:
            self._before = sys.stdout, sys.stderr
            self._ours = (
                _RoutedStream("stdout", self._before[0], self),
                _RoutedStream("stderr", self._before[1], self),
            )
            sys.stdout, sys.stderr = self._ours
            self._pid = os.getpid()  # not the process that imported this module, if that one forked
        self._installs += 1

        def restore() -> None:
            self._installs -= 1
            if not self._installs and (sys.stdout, sys.stderr) == self._ours:
                sys.stdout, sys.stderr = self._before

        return restore

    @contextmanager
    def collecting(self, collector: LineCollector) -> Iterator[None]:
        """Route what this thread writes to the collector."""
        thread = threading.get_ident()
        self._by_thread[thread] = collector
        try:
            yield
        finally:
            del self._by_thread[thread]
            collector.flush(final=True)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let this thread write to the original streams."""
        before = getattr(self._own, "is_paused", False)
        self._own.is_paused = True
        try:
            yield
        finally:
            self._own.is_paused = before

    def flush(self) -> None:
        """Emit the lines of all runs that are due."""
        for collector in tuple(self._by_thread.values()):
            collector.flush()

    def current(self) -> LineCollector | None:
        """Return the collector for what this thread writes; None: the original stream."""
        if not self._by_thread or getattr(self._own, "is_paused", False) or os.getpid() != self._pid:
            return None
        found = self._by_thread.get(threading.get_ident())
        if found is None and self._adopts_threads:
            running = tuple(self._by_thread.values())
            return running[0] if len(running) == 1 else None
        return found


class _RoutedStream(io.TextIOBase):
    """A text stream that passes on what no run writes."""

    def __init__(self, name: str, original: TextIO, router: OutputRouter) -> None:
        self._name, self._original, self._router = name, original, router

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if not text:
            return 0
        collector = self._router.current()
        if collector is None:
            return self._original.write(text)
        collector.write(self._name, text)
        return len(text)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._original.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._original.errors

    def flush(self) -> None:
        self._original.flush()

    def fileno(self) -> int:
        return self._original.fileno()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __reduce__(self) -> Any:  # `spawn` pickles arguments that may hold the stream
        raise TypeError("the stream of a run can't be pickled")
