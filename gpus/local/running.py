"""The runs in a model process: begun, heard of, ended. All of it with the lock of the GPU held."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from gpus.errors import GpuError, ProcessDied
from gpus.local.holder import Telling
from gpus.local.orders import Order, Run, Verdicts, error_of, let_go
from gpus.local.shelf import Shelf
from gpus.local.suspects import Suspects
from gpus.local.wire import Frame


class Running:
    """running: by attempt. now: the same, to be read without the lock."""

    def __init__(
        self,
        shelf: Shelf,
        lock: threading.Condition,
        *,
        hear: Callable[[Order, str, Any], None],
        happened: Callable[..., None],
    ) -> None:
        self.running: dict[str, Run] = {}
        self.now: tuple[Order, ...] = ()
        self.suspects = Suspects()
        self.loading: Order | None = None
        """Whose model is being loaded: it may be its code that ends the process."""
        self._in_company: set[str] = set()
        """The jobs of the last process that died by itself, if there were several."""
        self._verdicts: Verdicts | None = None
        """What the end of the process means for its runs, while it is being ended."""
        self._shelf, self._lock, self._hear, self._happened = shelf, lock, hear, happened

    def begin(self, order: Order, send: Callable[[Frame], None]) -> Run:
        now = time.monotonic()
        run = Run(order, send, began=now, last_sign=now)
        self.running[order.attempt] = run
        self._publish()
        self._shelf.take_place(order.model)
        return run

    def heard(self, frame: Frame) -> Telling:
        run = self.running.get(str(frame.get("attempt")))
        if run is None:
            return None
        run.last_sign = time.monotonic()
        if frame["said"] == "heard":
            if frame["kind"] == "progress":
                run.progress = frame["value"]
            return partial(self._hear, run.order, frame["kind"], frame["value"])
        failure = frame["failure"]
        if failure is None:
            self.end(run, result=frame["result"])
            return None
        if failure["sticky"]:
            self._shelf.tainted = failure["text"]
        self.end(run, error=error_of(failure, cancelled=run.cancel_sent))
        return None

    def expect_end(self, verdicts: Verdicts) -> None:
        """The process is being ended. Several may want that at once, each for its reason."""
        self._verdicts = verdicts if self._verdicts is None else self._verdicts.joined(verdicts)

    def gone(self, why: str) -> Telling:
        verdicts, self._verdicts = self._verdicts, None
        self._shelf.clear()
        there = [run.order for run in self.running.values()]
        there += [self.loading] if self.loading is not None else []
        if verdicts is None:
            self._in_company = {order.job for order in there} if len(there) > 1 else set()
            for job in self._in_company:
                self.suspects.add(job)
        for run in list(self.running.values()):
            if verdicts is None:
                error = self.death(run.order, why)
            else:
                error = verdicts.named.get(run.order.attempt) or verdicts.others or let_go(why)
            error.unfinished = True
            self.end(run, error=error)
        return (
            partial(self._happened, "model_process_died", why=why, runs=len(there))
            if verdicts is None
            else None
        )

    def death(self, order: Order, why: str) -> GpuError:
        """What it costs to have been in a process that ended by itself: a death for who was alone."""
        if order.job in self._in_company:
            return let_go(
                f"The model's process died with several runs in it ({why}): this one runs alone next."
            )
        return ProcessDied(f"The model's process died: {why}")

    @property
    def is_alone(self) -> bool:
        """A suspect runs: nobody may join it."""
        return any(run.order.job in self.suspects for run in self.running.values())

    def end(self, run: Run, *, result: Any = None, error: GpuError | None = None) -> None:
        run.end(result=result, error=error)
        if error is None or (error.counts and not error.process_died):
            self.suspects.clear(run.order.job)
        self.running.pop(run.order.attempt, None)
        self._publish()
        self._shelf.leave_place(run.order.model, alone=not self.running)
        self._lock.notify_all()

    def _publish(self) -> None:
        self.now = tuple(run.order for run in self.running.values())
