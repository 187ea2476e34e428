"""The runs in a model process: begun, heard of, ended. All of it with the lock of the GPU held."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from gpus.errors import GpuError, ProcessDied
from gpus.local.orders import Order, Run, Verdicts, error_of, let_go
from gpus.local.shelf import Shelf
from gpus.local.wire import Frame


class Running:
    """running: by attempt."""

    def __init__(
        self,
        shelf: Shelf,
        lock: threading.Condition,
        *,
        hear: Callable[[Order, str, Any], None],
        happened: Callable[..., None],
    ) -> None:
        self.running: dict[str, Run] = {}
        self._verdicts: Verdicts | None = None
        """What the end of the process means for its runs, while it is being ended."""
        self._shelf, self._lock, self._hear, self._happened = shelf, lock, hear, happened

    def begin(self, order: Order, send: Callable[[Frame], None]) -> Run:
        now = time.monotonic()
        run = Run(order, send, began=now, last_sign=now)
        self.running[order.attempt] = run
        self._shelf.take_place(order.model)
        return run

    def heard(self, frame: Frame) -> None:
        run = self.running.get(str(frame.get("attempt")))
        if run is None:
            return
        run.last_sign = time.monotonic()
        if frame["said"] == "heard":
            if frame["kind"] == "progress":
                run.progress = frame["value"]
            self._hear(run.order, frame["kind"], frame["value"])
            return
        failure = frame["failure"]
        if failure is None:
            self.end(run, result=frame["result"])
            return
        if failure["sticky"]:
            self._shelf.tainted = failure["text"]
        self.end(run, error=error_of(failure, cancelled=run.cancel_sent))

    def expect_end(self, verdicts: Verdicts) -> None:
        """The process is being ended. Several may want that at once, each for its reason."""
        self._verdicts = verdicts if self._verdicts is None else self._verdicts.joined(verdicts)

    def gone(self, why: str) -> None:
        verdicts, self._verdicts = self._verdicts, None
        self._shelf.clear()
        if verdicts is None:
            self._happened("model_process_died", why=why, runs=len(self.running))
        for run in list(self.running.values()):
            if verdicts is None:
                error: GpuError = ProcessDied(f"The model's process died: {why}")
            else:
                error = verdicts.named.get(run.order.attempt) or verdicts.others or let_go(why)
            self.end(run, error=error)

    def end(self, run: Run, *, result: Any = None, error: GpuError | None = None) -> None:
        run.end(result=result, error=error)
        self.running.pop(run.order.attempt, None)
        self._shelf.leave_place(run.order.model, alone=not self.running)
        self._lock.notify_all()
