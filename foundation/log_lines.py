"""Log lines of runs on their way from model code and GPU servers to the events of a job: safe to show, and
bounded. Pure.

docs/reference/events.md describes the events.
"""

from __future__ import annotations

import math
import re
import threading
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from foundation.signed_urls import without_signatures

MAX_LINE_CHARS = 4096
"""Characters of a line, before `DISPATCHER_LOG_LINE_CHARS` shortens it further."""
STREAMS = ("stdout", "stderr", "log")
"""Where a line was written: to standard output, to standard error, or by `ctx.log`."""
LEVELS = {
    "debug": "debug",
    "info": "info",
    "notice": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "critical": "error",
    "fatal": "error",
}
_STYLE = re.compile(r"\x1b\[[0-9;:]*m")
_MAX_LEFT_OUT = 10**12


class LogLine(NamedTuple):
    """A line of a run's log.

    stream: one of `STREAMS`. level: a value of `LEVELS`, or empty. at: Unix seconds by its writer's clock;
    None: unknown. left_out: number of lines in whose place this one stands; 0: it was written as it is.
    """

    stream: str
    text: str
    level: str = ""
    at: float | None = None
    left_out: int = 0


class LogPart(NamedTuple):
    """New lines of a run. seen: position in the server's log after them, to go on from; None: no such log."""

    lines: Sequence[LogLine]
    seen: int | None = None


def lines_left_out(count: int) -> LogLine:
    """Return the line that stands for `count` lines."""
    return LogLine("log", f"… {count} line{'' if count == 1 else 's'} left out", "warning", None, count)


def safe_text(text: str, most: int = MAX_LINE_CHARS) -> str:
    """Return a line's text for terminals and pages: without colours and signatures of URLs, other control
    characters escaped, cut to `most` characters."""
    text = without_signatures(text)
    is_cut = len(text) > most
    if is_cut:
        text = text[:most]
    if not text.isprintable():
        text = _STYLE.sub("", text).replace("\t", "    ")
        if not text.isprintable():
            text = "".join(map(_printable, text))
        if len(text) > most:  # escapes are longer than what they stand for
            text, is_cut = text[:most], True
    return text[: most - 1] + "…" if is_cut else text


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if unicodedata.category(character) == "Zs" else ascii(character)[1:-1]


def level_of(value: Any) -> str:
    """Return the level that a value names, or an empty text."""
    return LEVELS.get(value.lower(), "") if isinstance(value, str) and len(value) <= 16 else ""


def overwritten(text: str) -> str:
    """Return what a terminal shows of a line with carriage returns (progress bars): the last part. A carriage
    return at its end stays, for the next write."""
    if "\r" not in text:
        return text
    shown = text.rstrip("\r")
    return shown[shown.rfind("\r") + 1 :] + ("\r" if text.endswith("\r") else "")


def as_json(lines: Iterable[LogLine]) -> list[list[Any]]:
    """Return lines as JSON values, for the model process' pipe."""
    return [list(line) for line in lines]


def read_lines(values: Sequence[Any]) -> list[LogLine]:
    """Return the lines of JSON values from outside; values that are no line are dropped.

    values: texts, lists as of `as_json`, or objects with ``text`` and perhaps ``stream``, ``level``, ``at``
    (Unix seconds) and ``left_out``.
    """
    found = []
    for value in values:
        if isinstance(value, str):
            found.append(LogLine("stdout", safe_text(value)))
        elif isinstance(value, Mapping):
            found += _read(*(value.get(name) for name in LogLine._fields))
        elif isinstance(value, list) and len(value) == len(LogLine._fields):
            found += _read(*value)
    return found


def _read(stream: Any, text: Any, level: Any, at: Any, left_out: Any) -> list[LogLine]:
    if isinstance(left_out, int) and not isinstance(left_out, bool) and 0 < left_out <= _MAX_LEFT_OUT:
        return [lines_left_out(left_out)]
    if not isinstance(text, str):
        return []
    is_time = isinstance(at, (int, float)) and not isinstance(at, bool) and math.isfinite(at)
    stream = stream if stream in STREAMS else "log"
    return [LogLine(stream, safe_text(text), level_of(level), float(at) if is_time else None)]


class RateLimit:
    """A token bucket. Thread-safe. per_second: refill; burst: its size. It starts full."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second, self._burst, self._tokens = per_second, burst, burst
        self._at: float | None = None
        self._lock = threading.Lock()

    def take(self, amount: float, now: float) -> bool:
        """Take tokens if there are enough. now: monotonic seconds."""
        with self._lock:
            if self._at is not None and now > self._at:
                self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
            self._at = now
            if self._tokens < amount:
                return False
            self._tokens -= amount
            return True
