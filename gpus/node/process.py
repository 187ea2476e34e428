"""A node as a process: serves until it is told to stop."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from types import FrameType

_PR_SET_PDEATHSIG = 1


def stop_signal() -> threading.Event:
    """Set by SIGTERM or SIGINT; a second one ends the process at once. Call it in the main thread, before
    anybody is told that the node serves."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return stopped


def die_with_parent() -> None:
    """SIGKILL for this process when its parent ends (Linux; elsewhere nothing happens)."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended in between
        os.kill(os.getpid(), signal.SIGKILL)
