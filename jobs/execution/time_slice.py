"""How long a Celery task keeps its thread.

A long run is a Celery task of its own, which Flower shows. Short runs share a task, because the way through
the broker costs more than such a run: the thread is handed back when other wakes may wait for it, and from
time to time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

SHORT_SLICES = 20
"""With short jobs and idle threads, a thread is kept for this many time slices."""


def random_short_slices() -> float:
    """Jitter, so that threads that began together do not hand back together."""
    return SHORT_SLICES * random.uniform(0.75, 1.25)


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """seconds: the least time that a thread is kept; a job that runs longer is not short. began: monotonic.
    is_wanted: whether other wakes may wait for the thread. short_slices: as `SHORT_SLICES`, for this one."""

    seconds: float
    began: float
    is_wanted: Callable[[], bool] = lambda: True
    short_slices: float = SHORT_SLICES

    def is_over(self, now: float, ran_seconds: float) -> bool:
        """Return whether the thread is handed back after a job that ran for `ran_seconds`."""
        worked = now - self.began
        if worked < self.seconds:
            return False
        return ran_seconds >= self.seconds or worked >= self.seconds * self.short_slices or self.is_wanted()
