"""The new lines in the `logs` of a server's answers, which repeat earlier ones. Pure.

docs/reference/gpu_protocol.md describes the field. No content of it fails a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foundation.log_lines import (
    MAX_LINE_CHARS,
    LogLine,
    LogPart,
    lines_left_out,
    overwritten,
    read_lines,
    safe_text,
)
from foundation.signed_urls import SignatureFilter

LOG_BYTES = 256 * 1024
"""Bytes of log lines that an answer may have beyond the model's `max_response_bytes`."""
MAX_CHARS = 256 * 1024
"""Characters of one answer's text that are looked at: its end."""
MAX_LINES = 2000
"""Lines of one answer's list that are looked at: its end."""
_KNOWN_CHARS, _KNOWN_LINES = 256, 4
_MAX_POSITION = 2**53


class LogTail:
    """The part of one run's log that was read. seen: position in the server's log: characters of a text, or
    lines of a list."""

    def __init__(self, seen: int = 0) -> None:
        self.seen = seen
        self._known: str | list[Any] = []
        """The end of what was read, by which the same place is found in the next answer."""

    def read(self, body: Mapping[str, Any], *, is_last: bool) -> LogPart | None:
        """Return the new lines of an answer; None if there are none.

        body: with ``logs``, a text or a list, and perhaps ``logs_offset``: how many characters or lines of
        the log come before it. is_last: the run is over, so that a line without an end is whole.
        """
        logs, offset = body.get("logs"), body.get("logs_offset", 0)
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= _MAX_POSITION:
            offset = 0
        if isinstance(logs, str):
            lines = self._read_text(logs, offset, is_last=is_last)
        elif isinstance(logs, list):
            lines = self._read_list(logs, offset)
        else:
            return None
        return LogPart(lines, self.seen) if lines else None

    def _read_text(self, logs: str, offset: int, *, is_last: bool) -> list[LogLine]:
        begin = self._position(logs, offset)
        end = len(logs)
        if not is_last and end - begin <= MAX_LINE_CHARS:
            end = max(logs.rfind("\n", begin) + 1, begin)  # the last line may go on
        first, before = begin, self._before(logs, begin, offset)
        if end - begin > MAX_CHARS:  # from a whole line on: it may begin in the middle of a signature
            first, before = logs.find("\n", end - MAX_CHARS, end) + 1 or end, ""
        dropped = logs.count("\n", begin, first)
        if begin < first == end and logs[end - 1] != "\n":
            dropped += 1  # the last dropped line has no end yet
        signatures = SignatureFilter()
        signatures.filter(before)
        new = signatures.filter(logs[first:end]).removesuffix("\n")
        self.seen = offset + end
        self._known = logs[max(0, end - _KNOWN_CHARS) : end]
        found = [lines_left_out(dropped)] if dropped else []
        if end > first:
            rows = new.split("\n")
            if len(rows) > MAX_LINES:
                found = [lines_left_out(dropped + len(rows) - MAX_LINES)]
                rows = rows[-MAX_LINES:]
            found += [LogLine("stdout", safe_text(overwritten(row).rstrip())) for row in rows]
        return found

    def _before(self, logs: str, begin: int, offset: int) -> str:
        """Return some of the text before a place: a long line is read in parts, which cut signatures."""
        if begin == 0 and offset == self.seen and isinstance(self._known, str):
            return self._known
        return logs[max(0, begin - _KNOWN_CHARS) : begin]

    def _read_list(self, logs: list[Any], offset: int) -> list[LogLine]:
        begin = self._position(logs, offset)
        missing = max(0, offset - self.seen) if begin == 0 else 0
        first = max(begin, len(logs) - MAX_LINES)
        left_out = missing + first - begin
        self.seen = offset + len(logs)
        self._known = logs[-_KNOWN_LINES:]
        found = [lines_left_out(left_out)] if left_out else []
        return found + read_lines(logs[first:])

    def _position(self, logs: str | list[Any], offset: int) -> int:
        """Return where the new part begins: at the position that was read so far, if what comes before it is
        known; else after the last place where it is found. Logs that are shorter than before, or in which it
        is not found, were begun anew."""
        place, known = self.seen - offset, self._known
        if not known:  # nothing was read, or by another worker
            return min(max(place, 0), len(logs))
        if type(known) is not type(logs):
            return 0
        size = len(known)
        if size <= place <= len(logs) and logs[place - size : place] == known:
            return place
        if isinstance(logs, str):
            found = logs.rfind(str(known))
            return found + size if found >= 0 else self._anew(place, offset, len(logs))
        for end in range(len(logs), max(size, len(logs) - MAX_LINES) - 1, -1):
            if logs[end - size : end] == known:
                return end
        return self._anew(place, offset, len(logs))

    @staticmethod
    def _anew(place: int, offset: int, length: int) -> int:
        """Return the begin of a part in which the known end is not found. A server that gives offsets sends
        only what follows its own."""
        return min(max(place, 0), length) if offset else 0
