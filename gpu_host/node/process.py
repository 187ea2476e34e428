"""A node as a process: serves until it is told to stop."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from gpu_host.node.server import Node

_PR_SET_PDEATHSIG = 1
_SLICE_SECONDS = 0.5


class StopSignal:
    """SIGTERM or SIGINT; a second one, of either kind, ends the process at once. Make it in the main thread,
    before the node announces its address."""

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
        for either in (signal.SIGTERM, signal.SIGINT):
            signal.signal(either, signal.SIG_DFL)
        self._came.put(number)


def stop_after_runs(node: Node, grace_seconds: float, say: Callable[[str], object]) -> None:
    """The node refuses new runs, says how many it waits for, and stops after them."""
    node.admission.drain()
    with suppress(OSError):  # stdout may be closed
        say(_farewell(node.admission.unfinished(), grace_seconds))
    node.drain(grace_seconds)
    node.stop()


def _farewell(runs: int, grace_seconds: float) -> str:
    left = {0: "no run is left", 1: "1 run ends first"}.get(runs, f"{runs} runs end first")
    return (
        f"Stopping: {left}; results can be fetched meanwhile ({grace_seconds:g} s at most). "
        "A second signal ends the node at once."
    )


def die_with_parent() -> None:
    """SIGKILL for this process when its parent ends (Linux; elsewhere nothing happens)."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended in between
        os.kill(os.getpid(), signal.SIGKILL)
