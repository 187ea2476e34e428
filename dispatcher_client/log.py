"""The log lines of a job: parsing JSON lines."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from .errors import AnswerTooLarge, NoAnswer, read_json
from .stream import RETRY_SECONDS, SILENCE_SECONDS
from .transport import Request


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a job's log.

    id: its place, for `after`. at: ISO 8601. attempt: from 1. stream: stdout, stderr, or log (`ctx.log`).
    level: debug, info, warning, error, or None if unknown. left_out: number of lines in whose place it
    stands.
    """

    id: str
    at: str
    attempt: int
    stream: str
    level: str | None
    text: str
    left_out: int = 0


class LogParser:
    """Parses a job's log, one connection after another.

    after: id of the last known line. last_line_at: on the monotonic clock. max_line_bytes: a longer line
    raises AnswerTooLarge."""

    content_type = "application/x-ndjson"
    pause_seconds = RETRY_SECONDS

    def __init__(
        self,
        job_path: str,
        *,
        after: str,
        tail: int | None,
        attempt: int | None,
        follow: bool,
        max_line_bytes: int,
    ) -> None:
        self._path, self._attempt, self._follow = job_path, attempt, follow
        self.after, self._tail = after, tail
        self.last_line_at = time.monotonic()
        self.is_over = False
        self._max_line_bytes = max_line_bytes
        self._rest = bytearray()

    def request(self) -> Request:
        """Return the request of the next connection, and begin to read its answer."""
        self._rest.clear()
        known = {"after": self.after or None, "tail": self._tail, "attempt": self._attempt}
        query = {"format": "jsonl", **{name: value for name, value in known.items() if value is not None}}
        if self._follow:
            query["follow"] = "1"
        return Request(
            "GET",
            f"{self._path}/logs?{urlencode(query)}",
            SILENCE_SECONDS,
            headers={"Accept": self.content_type},
        )

    def feed(self, piece: bytes) -> list[LogLine]:
        """Return the lines that end in this piece. Raises AnswerTooLarge, NoAnswer."""
        self._rest += piece
        *whole, rest = self._rest.split(b"\n")
        if len(rest) > self._max_line_bytes:
            raise AnswerTooLarge(self._max_line_bytes)
        self._rest = bytearray(rest)
        if whole:
            self.last_line_at = time.monotonic()
        lines = []
        for text in whole:
            if text.strip() and not self.is_over and (line := self._read(text)) is not None:
                lines.append(line)
        return lines

    def end(self) -> None:
        """Note the whole end of an answer: without `follow` it is that of the log."""
        self.is_over = self.is_over or not self._follow

    def _read(self, text: bytearray) -> LogLine | None:
        try:
            found: Any = read_json(bytes(text))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise NoAnswer(f"a line of the log is not a JSON object: {bytes(text[:80])!r}")
        if found.get("done") is True:
            self.is_over = True
            return None
        try:
            line = LogLine(**{name: found[name] for name in LogLine.__slots__ if name in found})
        except TypeError as error:
            raise NoAnswer(f"a line of the log lacks a field: {error}") from error
        self.after, self._tail = line.id, None
        return line
