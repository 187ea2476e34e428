"""Sweeps while processes of two key layouts live."""

from __future__ import annotations

import threading
from collections.abc import Callable

from django.db import connection

from jobs.sweeps.base import TICK

RECONCILE_EVERY = 5
"""Steps of one second: the longest time until a job accepted by a web process of another layout is queued."""


class LayoutOverlapSweeper:
    """Runs the sweeps, in a process whose key layout is in use, while processes of another layout live.

    Needed because sweep processes of the other layout consume some of beat's ticks without touching the
    index, and its web processes can't push tickets. run_named: as of `Runner`.
    """

    def __init__(self, run_named: Callable[[str], None]) -> None:
        self._run_named = run_named
        self._steps = 0
        self._sweeping = threading.Lock()

    def step(self) -> None:
        """Start a sweep in a thread, unless the last one still runs. Called once per second."""
        self._steps += 1
        if self._sweeping.acquire(blocking=False):
            threading.Thread(target=self._sweep, name="sweeps-in-company", daemon=True).start()

    @property
    def is_sweeping(self) -> bool:
        return self._sweeping.locked()

    def _sweep(self) -> None:
        try:
            self._run_named(TICK)
            if self._steps % RECONCILE_EVERY == 0:
                self._run_named("reconcile")
        finally:
            connection.close()
            self._sweeping.release()
