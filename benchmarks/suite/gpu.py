"""The simulated GPU server, as the suite gives it orders (`gpu_server.py`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from verification.proving.children import Child, Children

from .slot_log import Run

_LOOK_SECONDS = 0.05


class NotDone(Exception):
    """What was waited for did not come; the message says what and how far it got."""


class Gpu:
    """url: its origin. Raises `Silent` if its process ended."""

    def __init__(self, children: Children, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "benchmarks.suite.gpu_server", str(port)]
        self._child: Child = children.start("gpu-server", *command, talks=True)
        self._child.hear()

    @property
    def pid(self) -> int:
        return self._child.pid

    def begin(self, slots: int, *, gate: bool = True) -> None:
        """A new log; gate: runs wait in their slots until `open_gate`."""
        self._child.ask(do="begin", slots=slots, gate=gate)

    def open_gate(self) -> None:
        self._child.ask(do="open")

    def standing(self) -> dict[str, Any]:
        """held (runs that wait at the gate), began, ended, callbacks."""
        return self._child.ask(do="standing")

    def wait_for(self, what: str, count: int, seconds: float, check: Callable[[], None]) -> None:
        """Until the standing's `what` has come to `count`. check: raises when waiting is in vain. Raises
        NotDone when a time as long as `seconds` passed without any progress."""
        best, until = -1, time.monotonic() + seconds
        while (now := self.standing()[what]) < count:
            check()
            if now > best:
                best, until = now, time.monotonic() + seconds
            if time.monotonic() > until:
                raise NotDone(f"{what} {now} of {count} jobs, and no more in {seconds:.0f} s")
            time.sleep(_LOOK_SECONDS)

    def log(self) -> tuple[list[Run], int, list[tuple[str, float]]]:
        """The runs that ended, how many requests came while it was full, and (job id, when) of callbacks."""
        told = self._child.ask(do="log")
        runs = [Run(*line) for line in told["runs"] if line[2]]
        return runs, told["refused"], [(job, at) for job, at in told["callbacks"]]

    def stop(self) -> None:
        self._child.stop()
