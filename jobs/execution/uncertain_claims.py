"""A worker's claims whose answer was lost: each may have been granted."""

from __future__ import annotations

import threading

MOST = 200
"""Beyond this the oldest claim is dropped; its lease, if it was granted, expires."""
HELD_BACK_SECONDS = 3.0
"""A request may reach Redis late (a stalled server, a slow network): a claim counts as refused once it was
seen ungranted for this long."""


class UncertainClaims:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fleets: dict[str, str] = {}  # by attempt, the oldest first
        self._not_granted_since: dict[str, float] = {}

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

    def mark_not_granted(self, attempt_id: str, now: float) -> None:
        """Redis holds no lease for this claim at `now` (monotonic seconds)."""
        with self._lock:
            if now - self._not_granted_since.setdefault(attempt_id, now) >= HELD_BACK_SECONDS:
                self._forget(attempt_id)

    def mark_returned(self, attempt_id: str) -> None:
        with self._lock:
            self._forget(attempt_id)

    def _forget(self, attempt_id: str) -> None:
        self._fleets.pop(attempt_id, None)
        self._not_granted_since.pop(attempt_id, None)
