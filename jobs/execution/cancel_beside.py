"""A cancel that is asked for while the run's request goes on being read: its answer proves the run over, and
is the only proof of a server without a cancel endpoint."""

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


class CancelBeside:
    """Of one run. abort: ends its read. in_background: does a piece of work in a thread of its own; None: the
    cancel is never asked for beside the request."""

    def __init__(
        self,
        clock: Clock,
        abort: Abort,
        in_background: Callable[[Callable[[], None]], None] | None,
    ) -> None:
        self.was_asked = False
        self.is_confirmed = False
        self._clock, self._abort, self._in_background = clock, abort, in_background
        self._lock = threading.Lock()
        self._reads = self._is_asking = False
        self._again_at = -math.inf

    def reads(self, *, on: bool) -> None:
        """The run's request is under way from now on, or over."""
        with self._lock:
            self._reads = on and self._in_background is not None

    def ask(self, ask_to_stop: Callable[[], bool], is_proven: Callable[[], bool]) -> bool:
        """Ask the server in the background, at most every two seconds. False: no request is being read, and
        the caller stops the run in its own way. From any thread; never waits.

        ask_to_stop: True if the server confirms. is_proven: whether its health says that it does not run it.
        """
        with self._lock:
            if not self._reads or self._in_background is None:
                return False
            if self._is_asking or self._clock.monotonic() < self._again_at:
                return True
            self.was_asked = self._is_asking = True
        try:
            self._in_background(partial(self._work, ask_to_stop, is_proven))
        except RuntimeError as error:  # no thread can be started
            log.warning("cancel_not_asked_beside", error=str(error))
            self._is_asking = False
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
            self._is_asking = False
