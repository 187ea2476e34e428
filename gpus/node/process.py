"""A node as a process: serves until it is told to stop."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1
_SLICE_SECONDS = 0.5


class StopSignal:
    """SIGTERM or SIGINT; a second one ends the process at once. Make it in the main thread, before anybody
    is told that the node serves."""

    def __init__(self) -> None:
        # a handler may interrupt the very wait it ends: of queue and Event, only SimpleQueue bears that
        self._came: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def wait(self) -> None:
        """In slices: a signal that comes just before the wait blocks does not end it by itself."""
        while True:
            try:
                self._came.get(timeout=_SLICE_SECONDS)
            except queue.Empty:
                continue
            return

    def _stop(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        self._came.put(number)


def die_with_parent() -> None:
    """SIGKILL for this process when its parent ends (Linux; elsewhere nothing happens)."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended in between
        os.kill(os.getpid(), signal.SIGKILL)
