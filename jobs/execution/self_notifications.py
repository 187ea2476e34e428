"""Tells a worker's own announcements, which come back to it by publish/subscribe, from those of others."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

MOST = 10_000
"""Jobs whose own announcement has not come back yet."""


class SelfNotifications:
    """Hints only: after a lost announcement, the next one of that job by another process counts as our own;
    the worker polls every second anyway. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()

    def tracking(self, announce: Callable[[Sequence[str]], None]) -> Callable[[Sequence[str]], None]:
        """Wrap `announce` so that its announcements are counted as our own."""

        def announce_and_know(job_ids: Sequence[str]) -> None:
            with self._lock:
                if len(self._under_way) > MOST:  # nothing comes back: Redis is away
                    self._under_way.clear()
                self._under_way.update(job_ids)
            announce(job_ids)

        return announce_and_know

    def from_others(self, job_ids: Sequence[str]) -> set[str]:
        """Return the received job ids that other processes announced."""
        others = set()
        with self._lock:
            for job_id in job_ids:
                count = self._under_way.pop(job_id, 0)
                if count == 0:
                    others.add(job_id)
                elif count > 1:
                    self._under_way[job_id] = count - 1
        return others
