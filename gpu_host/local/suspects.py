"""Who may have brought a process down, where it was not alone in it.

A crash says nothing of which run caused it. Each that was there loses its attempt at no cost and is a
suspect: it runs alone in the process from then on, until it ended by itself. So nobody pays for another's
crash, the culprit pays for each further one, and a worker loses no job for free twice.
"""

from __future__ import annotations

from collections import OrderedDict

KEPT = 1000
"""The oldest are forgotten beyond it: a job that never comes back ends elsewhere."""


class Suspects:
    """Jobs by id."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, job: object) -> bool:
        return job in self._jobs

    def add(self, job: str) -> None:
        self._jobs[job] = None
        self._jobs.move_to_end(job)
        while len(self._jobs) > KEPT:
            self._jobs.popitem(last=False)

    def clear(self, job: str) -> None:
        self._jobs.pop(job, None)
