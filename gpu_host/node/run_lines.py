"""The log lines of a run on this node, kept for the dispatcher's polls and for the run's answer."""

from __future__ import annotations

import json
import threading
from collections import deque
from typing import Any

from foundation.log_lines import LogLine

MAX_CHARS = 48 * 1024
"""Characters kept of one run: its last lines. In an answer they take less than the dispatcher reads beyond
the model's `max_response_bytes`, even if all of them are escaped."""
LINE_OVERHEAD = 80
"""Characters that a line takes besides its text."""


class RunLines:
    """The lines of one run. Thread-safe."""

    def __init__(self) -> None:
        self._lines: deque[LogLine] = deque()
        self._dropped = 0
        self._lock = threading.Lock()
        self.chars = 0

    def add(self, lines: list[LogLine]) -> None:
        """Add lines; the oldest are dropped beyond `MAX_CHARS`."""
        with self._lock:
            for line in lines:
                self._lines.append(line)
                self.chars += len(line.text) + LINE_OVERHEAD
            while self.chars > MAX_CHARS:
                self.chars -= len(self._lines.popleft().text) + LINE_OVERHEAD
                self._dropped += 1

    def after(self, position: int) -> dict[str, Any]:
        """Return the fields ``logs`` and ``logs_offset`` with the lines after the first `position` ones; none
        without new lines."""
        with self._lock:
            first = max(position, self._dropped)
            lines = list(self._lines)[first - self._dropped :]
        if not lines:
            return {}
        return {"logs": [_as_object(line) for line in lines], "logs_offset": first}

    def added_to(self, answer: bytes, position: int) -> bytes:
        """Return a run's answer, a JSON object, with the lines after the first `position` ones."""
        fields = self.after(position)
        if not fields or not answer.endswith(b"}"):
            return answer
        return answer[:-1] + b", " + json.dumps(fields).encode()[1:]


def _as_object(line: LogLine) -> dict[str, Any]:
    named = line._asdict()
    return {name: value for name, value in named.items() if value not in ("", None, 0)}
