"""Callbacks whose time has come: due again by their schedule, or the wake after the commit was lost.

The callbacks worker finds them by itself; workers of older versions send what they are named. A message is
due when it is written: one that was never tried and is due later was written by a clock that was ahead.
"""

from __future__ import annotations

from datetime import timedelta

from jobs.callbacks.delivery_worker import limits
from jobs.callbacks.pick import Pick, Shares
from jobs.models import Callback
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount

GRACE_SECONDS = 1.0
"""The wake that followed the commit is given this long."""
AGAIN_SECONDS = 10.0
"""A message still waiting for its worker gets no second wake sooner: they would pile up."""
AHEAD_SECONDS = 10.0
"""The clocks of two processes differ by less."""
LOOK_AHEAD_SECONDS = 10.0


class DueCallbacksSweep:
    def __init__(self) -> None:
        self._woken: dict[str, float] = {}
        self._looked_ahead_at: float | None = None
        self._pick = Pick()

    def __call__(self, ports: Ports) -> SweepCount:
        """A doubled wake is harmless: a delivery takes its row by compare-and-set. repaired: wakes sent."""
        monotonic = ports.clock.monotonic()
        self._correct_future_times(ports)
        due, _ = self._pick.ids(Shares(limits()), ports.clock.now() - timedelta(seconds=GRACE_SECONDS))
        for callback_id, woken_at in list(self._woken.items()):
            if not 0 <= monotonic - woken_at < AGAIN_SECONDS:
                del self._woken[callback_id]
        wake = [callback_id for callback_id in due if callback_id not in self._woken]
        if wake:
            self._woken.update(dict.fromkeys(wake, monotonic))
            ports.wake_callbacks(wake)
        return SweepCount(len(due), len(wake))

    def _correct_future_times(self, ports: Ports) -> None:
        """An update takes the write lock of SQLite, so it is made only where a time is wrong."""
        at = ports.clock.monotonic()
        if self._looked_ahead_at is not None and 0 <= at - self._looked_ahead_at < LOOK_AHEAD_SECONDS:
            return
        self._looked_ahead_at = at
        now = ports.clock.now()
        ahead = Callback.objects.filter(
            state=Callback.State.PENDING, tries=0, next_at__gt=now + timedelta(seconds=AHEAD_SECONDS)
        )
        if ahead.exists():  # correct by any clock: these messages have been due since they were written
            ahead.update(next_at=now)
