"""Callbacks that are due for delivery: a retry is due by the schedule, or the wake after the commit was lost.

The callbacks worker also polls for due messages; workers of older versions send only the ids in a wake. A
message is due when it is written: an untried message that is due later was written by a clock that was ahead.
"""

from __future__ import annotations

from datetime import timedelta

from jobs.callbacks.delivery_worker import limits
from jobs.callbacks.pick import Picker, Shares
from jobs.models import Callback
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount

GRACE_SECONDS = 1.0
"""Time for the wake that followed the commit to be handled."""
REWAKE_SECONDS = 10.0
"""Minimum time between two wakes for one message, so that wakes don't pile up."""
CLOCK_TOLERANCE_SECONDS = 10.0
"""Upper bound of the difference between two processes' clocks."""
FUTURE_CHECK_SECONDS = 10.0
"""Time between two checks for messages with a due time in the future."""


class DueCallbacksSweep:
    """Sends wakes for due callbacks. Keeps when each message was last woken (monotonic seconds)."""

    def __init__(self) -> None:
        self._woken: dict[str, float] = {}
        self._future_checked_at: float | None = None
        self._picker = Picker()

    def __call__(self, ports: Ports) -> SweepCount:
        """looked: callbacks due. repaired: wakes sent; a second wake is harmless, because a delivery takes
        its row by compare-and-set."""
        monotonic = ports.clock.monotonic()
        self._correct_future_times(ports)
        due, _ = self._picker.pick(Shares(limits()), ports.clock.now() - timedelta(seconds=GRACE_SECONDS))
        for callback_id, woken_at in list(self._woken.items()):
            if not 0 <= monotonic - woken_at < REWAKE_SECONDS:
                del self._woken[callback_id]
        wake = [callback_id for callback_id in due if callback_id not in self._woken]
        if wake:
            self._woken.update(dict.fromkeys(wake, monotonic))
            ports.wake_callbacks(wake)
        return SweepCount(len(due), len(wake))

    def _correct_future_times(self, ports: Ports) -> None:
        """Make untried messages with a due time in the future due now. Updates only if there are any, because
        an update takes SQLite's write lock."""
        at = ports.clock.monotonic()
        if self._future_checked_at is not None and 0 <= at - self._future_checked_at < FUTURE_CHECK_SECONDS:
            return
        self._future_checked_at = at
        now = ports.clock.now()
        ahead = Callback.objects.filter(
            state=Callback.State.PENDING,
            tries=0,
            next_at__gt=now + timedelta(seconds=CLOCK_TOLERANCE_SECONDS),
        )
        if ahead.exists():  # safe whichever clock is wrong: an untried message is due since it was written
            ahead.update(next_at=now)
