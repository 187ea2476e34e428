"""Rate and size limits of a run's progress, log lines and partial output. Pure.

A handler that writes too much fills neither log nor pipe; dropped items are counted, and the count is sent
with the next item.
"""

from __future__ import annotations

import json
from typing import Any

from gpus.protocol import parse_progress

PROGRESS_SECONDS = 0.1
"""Shortest time between two progress items."""
PER_SECOND = 200
"""Log lines and partial outputs of one run."""
MAX_LOG_CHARS = 4096
MAX_FIELDS_BYTES = 4096
MAX_PARTIAL_BYTES = 64 * 1024


class OutputLimiter:
    """The limits of one run."""

    def __init__(self) -> None:
        self._progress_at = -1e9
        self._second, self._sent, self._dropped = -1, 0, 0

    def admit(self, kind: str, value: Any, now: float) -> list[tuple[str, Any]]:
        """Return the items to send for this one. now: monotonic. Raises TypeError, ValueError for a value
        that is not JSON."""
        if kind == "progress":
            progress = parse_progress(value)
            is_last = progress is not None and progress.value >= 1.0
            if now - self._progress_at < PROGRESS_SECONDS and not is_last:
                return []
            self._progress_at = now
            return [(kind, value)]
        value = _cut(value) if kind == "log" else value
        too_large = kind == "partial" and len(json.dumps(value)) > MAX_PARTIAL_BYTES
        if int(now) != self._second:
            self._second, self._sent = int(now), 0
        self._sent += 1
        if too_large or self._sent > PER_SECOND:
            self._dropped += 1
            return []
        missing, self._dropped = self._dropped, 0
        found = [("log", {"text": f"… {missing} more left out", "fields": {}})] if missing else []
        return [*found, (kind, value)]


def _cut(line: dict[str, Any]) -> dict[str, Any]:
    fields = line["fields"]
    if len(json.dumps(fields)) > MAX_FIELDS_BYTES:
        fields = {"left_out": sorted(fields)[:20]}
    return {"text": line["text"][:MAX_LOG_CHARS], "fields": fields}
