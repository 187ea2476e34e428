"""How long a Celery task keeps its thread.

A run that takes its time is a task of its own, which is what Flower shows. Short ones share one: the way
through the broker to the next costs a slot more than their run, so it is taken when somebody else may wait
for the thread, and now and then.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

SHORT_TURNS = 20
"""So many times as long as one is kept with short jobs, if there are threads for everybody."""


def some_short_turns() -> float:
    """Not the same for all: threads that began together would hand back together, each in the others' way."""
    return SHORT_TURNS * random.uniform(0.75, 1.25)


@dataclass(frozen=True, slots=True)
class Turn:
    """seconds: so long it goes on with whatever comes; what runs longer is no short job. began: monotonic.
    is_wanted: whether others may wait for the thread. short_turns: as above, for this one."""

    seconds: float
    began: float
    is_wanted: Callable[[], bool] = lambda: True
    short_turns: float = SHORT_TURNS

    def is_over(self, now: float, ran_seconds: float) -> bool:
        """After a job that ran so long."""
        worked = now - self.began
        if worked < self.seconds:
            return False
        return ran_seconds >= self.seconds or worked >= self.seconds * self.short_turns or self.is_wanted()
