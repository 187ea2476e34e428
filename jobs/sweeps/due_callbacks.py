"""Callbacks whose time has come: due again by their schedule, or the wake after the commit was lost.

The callbacks worker finds them by itself; workers of older versions send what they are named.
"""

from __future__ import annotations

from datetime import timedelta

from jobs.callbacks.delivery_worker import limits
from jobs.callbacks.pick import Pick
from jobs.callbacks.shares import Shares
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount

GRACE_SECONDS = 1.0
"""The wake that followed the commit is given this long."""
AGAIN_SECONDS = 10.0
"""A message still waiting for its worker gets no second wake sooner: they would pile up."""


class DueCallbacksSweep:
    def __init__(self) -> None:
        self._woken: dict[str, float] = {}
        self._pick = Pick()

    def __call__(self, ports: Ports) -> SweepCount:
        """A doubled wake is harmless: a delivery takes its row by compare-and-set. repaired: wakes sent."""
        monotonic = ports.clock.monotonic()
        due, _ = self._pick.ids(Shares(limits()), ports.clock.now() - timedelta(seconds=GRACE_SECONDS))
        for callback_id, woken_at in list(self._woken.items()):
            if not 0 <= monotonic - woken_at < AGAIN_SECONDS:
                del self._woken[callback_id]
        wake = [callback_id for callback_id in due if callback_id not in self._woken]
        if wake:
            self._woken.update(dict.fromkeys(wake, monotonic))
            ports.wake_callbacks(wake)
        return SweepCount(len(due), len(wake))
