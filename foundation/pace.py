"""How fast a model process is read: what it says beyond that waits in its pipe, and in the end it does."""

from __future__ import annotations

import time
from collections.abc import Callable

UNIT_BYTES = 1024
"""What one frame or line costs beside its bytes."""


class Pace:
    """A bucket of bytes. per_second: what flows in; burst: what it may hold."""

    def __init__(
        self,
        per_second: float,
        burst: Callable[[], float],
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second, self._burst, self._now, self._sleep = per_second, burst, now, sleep
        self._left, self._at = burst(), now()

    def take(self, size: int) -> None:
        """Waits until so many bytes, of one frame or line, may be looked at."""
        now, burst = self._now(), self._burst()
        self._left = min(burst, self._left + (now - self._at) * self._per_second) - size - UNIT_BYTES
        self._at = now
        if self._left < 0:
            self._sleep(-self._left / self._per_second)
