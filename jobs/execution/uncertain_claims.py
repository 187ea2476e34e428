"""Claims whose answer was lost, of all of a worker's threads: each may have been granted all the same."""

from __future__ import annotations

import threading

MOST = 200
"""More are not remembered: the lease of the oldest, if it has one, runs out."""
HELD_BACK_SECONDS = 3.0
"""A server that stood still, and a network that held back, go on with what they were sent: only what was not
granted for so long never was."""


class Unanswered:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fleets: dict[str, str] = {}  # by attempt, the oldest first
        self._nothing_since: dict[str, float] = {}

    def add(self, attempt_id: str, fleet_name: str) -> None:
        with self._lock:
            self._fleets[attempt_id] = fleet_name
            if len(self._fleets) > MOST:
                self._forget(next(iter(self._fleets)))

    def by_fleet(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        with self._lock:
            for attempt_id, fleet_name in self._fleets.items():
                found.setdefault(fleet_name, []).append(attempt_id)
        return found

    def was_nothing(self, attempt_id: str, now: float) -> None:
        """It is not granted now (monotonic seconds)."""
        with self._lock:
            if now - self._nothing_since.setdefault(attempt_id, now) >= HELD_BACK_SECONDS:
                self._forget(attempt_id)

    def was_given_back(self, attempt_id: str) -> None:
        with self._lock:
            self._forget(attempt_id)

    def _forget(self, attempt_id: str) -> None:
        self._fleets.pop(attempt_id, None)
        self._nothing_since.pop(attempt_id, None)
