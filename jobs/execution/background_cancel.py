"""Requests a cancel in the background while the run's answer is still being read: that answer proves the run
over, and is the only proof of a server without a cancel endpoint."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import partial

import structlog

from gpus.protocol import Clock
from gpus.runners.base import Abort

log = structlog.get_logger()

AGAIN_SECONDS = 2.0
ANSWERED = "the server answered its request"


class BackgroundCancel:
    """The background cancel of one run. abort: ends its read. in_background: runs a function in a thread of
    its own; None: cancels are never requested in the background."""

    def __init__(
        self,
        clock: Clock,
        abort: Abort,
        in_background: Callable[[Callable[[], None]], None] | None,
    ) -> None:
        self.was_requested = False
        self.is_confirmed = False
        self._clock, self._abort, self._in_background = clock, abort, in_background
        self._lock = threading.Lock()
        self._is_reading = self._is_requesting = False
        self._again_at = -math.inf

    def set_reading(self, *, on: bool) -> None:
        """The read of the run's answer begins or ends."""
        with self._lock:
            self._is_reading = on and self._in_background is not None

    def request(self, ask_to_stop: Callable[[], bool], is_proven: Callable[[], bool]) -> bool:
        """Ask the server in the background, at most every two seconds. False: no request is being read, and
        the caller stops the run in its own way. From any thread; never waits.

        ask_to_stop: True if the server confirms. is_proven: whether its health says that it does not run it.
        """
        with self._lock:
            if not self._is_reading or self._in_background is None:
                return False
            if self._is_requesting or self._clock.monotonic() < self._again_at:
                return True
            self.was_requested = self._is_requesting = True
        try:
            self._in_background(partial(self._work, ask_to_stop, is_proven))
        except RuntimeError as error:  # no thread can be started
            log.warning("cancel_not_asked_beside", error=str(error))
            self._is_requesting = False
            return False
        return True

    def _work(self, ask_to_stop: Callable[[], bool], is_proven: Callable[[], bool]) -> None:
        """The read ends where the server confirms, or does not know of the run any more."""
        try:
            self.is_confirmed = ask_to_stop()
            if self.is_confirmed or is_proven():
                self._abort.fire()
        finally:
            self._again_at = self._clock.monotonic() + AGAIN_SECONDS
            self._is_requesting = False
