"""Rate and size limits of a run's progress, log lines and partial output. Pure.

A handler that writes too much fills neither log nor pipe; dropped items are counted, and the count is sent
with the next item.
"""

from __future__ import annotations

import json
from typing import Any

from foundation.log_lines import LogLine, RateLimit, lines_left_out, read_lines
from gpus.protocol import parse_progress

PROGRESS_SECONDS = 0.1
"""Shortest time between two progress items."""
PER_SECOND = 200
"""Partial outputs of one run."""
LINES_PER_SECOND, LINES_AT_ONCE = 200, 1000
"""Log lines of one run: as a rate, and in one go."""
MAX_PARTIAL_BYTES = 64 * 1024


class OutputLimiter:
    """The limits of one run."""

    def __init__(self) -> None:
        self._progress_at = -1e9
        self._second, self._sent, self._dropped = -1, 0, 0
        self._lines, self._dropped_lines = RateLimit(LINES_PER_SECOND, LINES_AT_ONCE), 0

    def admit(self, kind: str, value: Any, now: float) -> list[tuple[str, Any]]:
        """Return the items to send for this one: a list of `LogLine` for the kind ``log``.

        kind: ``progress`` or ``partial``. now: monotonic. Raises TypeError, ValueError for a value that is
        not JSON."""
        if kind == "progress":
            progress = parse_progress(value)
            is_last = progress is not None and progress.value >= 1.0
            if now - self._progress_at < PROGRESS_SECONDS and not is_last:
                return []
            self._progress_at = now
            return [(kind, value)]
        too_large = kind == "partial" and len(json.dumps(value)) > MAX_PARTIAL_BYTES
        if int(now) != self._second:
            self._second, self._sent = int(now), 0
        self._sent += 1
        if too_large or self._sent > PER_SECOND:
            self._dropped += 1
            return []
        missing, self._dropped = self._dropped, 0
        text = f"… {missing} partial output{'' if missing == 1 else 's'} left out"
        found: list[tuple[str, Any]] = [("log", [LogLine("log", text, "warning")])] if missing else []
        return [*found, (kind, value)]

    def admit_lines(self, values: Any, now: float) -> list[LogLine]:
        """Return the lines among `values`, a list as of `foundation.log_lines.as_json`, within the rate."""
        if not isinstance(values, list):
            return []
        room = 0
        while room < len(values) and self._lines.take(1, now):
            room += 1
        lines = read_lines(values[:room])
        if lines and self._dropped_lines:
            lines.insert(0, lines_left_out(self._dropped_lines))
            self._dropped_lines = 0
        self._dropped_lines += len(values) - room
        return lines
