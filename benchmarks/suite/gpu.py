"""The suite's interface to the simulated GPU server (`gpu_server.py`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from verification.proving.children import Child, Children

from .slot_log import Run

_POLL_SECONDS = 0.05


class NotDone(Exception):
    """An awaited state was not reached; the message says which and how far it got."""


class Gpu:
    """The simulated GPU server, in a process of its own. url: its origin. Raises `NoReply` if its process
    exited."""

    def __init__(self, children: Children, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "benchmarks.suite.gpu_server", str(port)]
        self._child: Child = children.start("gpu-server", *command, talks=True)
        self._child.receive()

    @property
    def pid(self) -> int:
        return self._child.pid

    def begin(self, slots: int, *, gate: bool = True) -> None:
        """Start a new log. gate: runs wait in their slots until `open_gate`."""
        self._child.ask(do="begin", slots=slots, gate=gate)

    def open_gate(self) -> None:
        self._child.ask(do="open")

    def standing(self) -> dict[str, Any]:
        """Return counts: held (runs that wait at the gate), began, ended, callbacks."""
        return self._child.ask(do="standing")

    def wait_for(self, what: str, count: int, seconds: float, check: Callable[[], None]) -> None:
        """Wait until the count `what` has reached `count`. Raises NotDone after `seconds` without progress.

        check: raises if waiting is in vain."""
        best, until = -1, time.monotonic() + seconds
        while (now := self.standing()[what]) < count:
            check()
            if now > best:
                best, until = now, time.monotonic() + seconds
            if time.monotonic() > until:
                raise NotDone(f"{what} {now} of {count} jobs, and no more in {seconds:.0f} s")
            time.sleep(_POLL_SECONDS)

    def log(self) -> tuple[list[Run], int, list[tuple[str, float]]]:
        """Return the runs that ended, the number of requests while all slots were busy, and (job id, time) of
        callbacks."""
        log = self._child.ask(do="log")
        runs = [Run(*line) for line in log["runs"] if line[2]]
        return runs, log["refused"], [(job, at) for job, at in log["callbacks"]]

    def stop(self) -> None:
        self._child.stop()
