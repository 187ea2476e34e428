"""Runs the sweeps of a process whose key layout is in use while processes of another layout live: their
sweepers consume some of beat's ticks and do nothing with the index, and their webs can't push tickets."""

from __future__ import annotations

import threading

from django.db import connection

from jobs.sweeps import TICK, run_sweep

RECONCILE_EVERY = 5
"""Steps, each a second long: so soon a job is in line that such a web has accepted."""


class LayoutOverlapSweeper:
    def __init__(self) -> None:
        self._steps = 0
        self._sweeping = threading.Lock()

    def step(self) -> None:
        """Returns at once; while the last one goes on it does nothing."""
        self._steps += 1
        if self._sweeping.acquire(blocking=False):
            threading.Thread(target=self._sweep, name="sweeps-in-company", daemon=True).start()

    @property
    def is_sweeping(self) -> bool:
        return self._sweeping.locked()

    def _sweep(self) -> None:
        try:
            run_sweep(TICK)
            if self._steps % RECONCILE_EVERY == 0:
                run_sweep("reconcile")
        finally:
            connection.close()
            self._sweeping.release()
