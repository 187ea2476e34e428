"""What a worker announces comes back to it, as to everybody who listens: news from others is what it has to
look for."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

MOST = 10_000
"""Jobs of which an echo is expected."""


class Echoes:
    """Hints only: an announcement that got lost makes the next one of that job, from somebody else, pass for
    its echo; the worker looks by itself every second. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()

    def of(self, announce: Callable[[Sequence[str]], None]) -> Callable[[Sequence[str]], None]:
        """The same, and its echo is known."""

        def announce_and_know(job_ids: Sequence[str]) -> None:
            with self._lock:
                if len(self._under_way) > MOST:  # nothing comes back: Redis is away
                    self._under_way.clear()
                self._under_way.update(job_ids)
            announce(job_ids)

        return announce_and_know

    def without(self, job_ids: Sequence[str]) -> set[str]:
        """Those of what was heard that others announced."""
        others = set()
        with self._lock:
            for job_id in job_ids:
                count = self._under_way.pop(job_id, 0)
                if count == 0:
                    others.add(job_id)
                elif count > 1:
                    self._under_way[job_id] = count - 1
        return others
