"""The runs in a model process, and the queue of those that wait for it. The lock of the GPU must be held for
all methods of both."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from foundation.log_lines import LogLine, LogPart
from gpu_host.local.eviction import Load, NoRoom, Replace, Unload, ready
from gpu_host.local.frames import Frame, read_event, read_failure, read_why
from gpu_host.local.load_unload import ModelLoader
from gpu_host.local.loaded_models import LoadedModels
from gpu_host.local.orders import EndErrors, Order, Run, error_of, interrupted
from gpu_host.local.process import Notification, ProcessOwner
from gpus.errors import DoesNotFit, GpuBusy, GpuError, ProcessDied, ServerFailed

SPARE_BYTES = 1024 * 1024
"""Bytes of a frame beside the result in it."""


KEPT_SUSPECTS = 1000
"""Beyond this number the oldest are dropped."""


class Suspects:
    """Ids of jobs that may have crashed a process in which several ran.

    A crash does not show which run caused it. Each job that was there loses its attempt at no cost and
    becomes a suspect: it runs alone in the process until one of its runs ends by itself. So a job never pays
    for another's crash, a job that crashes pays for each further crash, and a worker loses no job for free
    twice.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, job: object) -> bool:
        return job in self._jobs

    def add(self, job: str) -> None:
        """Mark a job as a suspect."""
        self._jobs[job] = None
        self._jobs.move_to_end(job)
        while len(self._jobs) > KEPT_SUSPECTS:
            self._jobs.popitem(last=False)

    def clear(self, job: str) -> None:
        """A job is no suspect any more: it ended by itself."""
        self._jobs.pop(job, None)


class RunTable:
    """The runs of the process. running: by attempt. now: their orders, readable without the lock."""

    def __init__(
        self,
        loaded: LoadedModels,
        lock: threading.Condition,
        *,
        on_event: Callable[[Order, str, Any], None],
        log_event: Callable[..., None],
    ) -> None:
        self.running: dict[str, Run] = {}
        self.now: tuple[Order, ...] = ()
        self.suspects = Suspects()
        self.loading: Order | None = None
        """The order whose model is being loaded: the model's code may end the process."""
        self._died_together: set[str] = set()
        """The jobs of the last process that died by itself, if there were several."""
        self._end_errors: EndErrors | None = None
        """The errors of its runs, while the process is being ended."""
        self._loaded, self._lock, self._send_event, self._log_event = loaded, lock, on_event, log_event

    def begin(self, order: Order, send: Callable[[Frame], None]) -> Run:
        """Start a run of a loaded model; the caller sends its frame."""
        now = time.monotonic()
        run = Run(order, send, began=now, last_sign=now)
        self.running[order.attempt] = run
        self._publish()
        self._loaded.acquire(order.model)
        return run

    def on_frame(self, frame: Frame) -> Notification:
        """Handle a frame of a run. Returns a callback to call without the lock, or None."""
        attempt = frame.get("attempt")
        run = self.running.get(attempt) if isinstance(attempt, str) else None
        if run is None:
            return None
        now = run.last_sign = time.monotonic()
        if frame["said"] == "heard":
            return self._on_event(run, frame, now)
        failure = read_failure(frame.get("failure"))
        if failure is None:
            self.end(run, result=frame.get("result"))
            return None
        if failure.sticky:
            self._loaded.tainted = read_why(failure.text)
        self.end(run, error=error_of(failure, cancelled=run.cancel_sent))
        return None

    def on_line(self, stream: str, line: str) -> bool:
        """Pass a line of the process on to its run, if only one can have written it: that of a load, or the
        only one. Return False if there is none. Called without the lock."""
        running, loading = self.now, self.loading
        if loading is None and len(running) != 1:
            return False
        part = LogPart([LogLine(stream, line, at=time.time())])
        self._send_event(loading or running[0], "log", part)
        return True

    def _on_event(self, run: Run, frame: Frame, now: float) -> Notification:
        if frame.get("kind") == "log":
            lines = run.limiter.admit_lines(frame.get("value"), now)
            return partial(self._send_event, run.order, "log", LogPart(lines)) if lines else None
        event = read_event(frame.get("kind"), frame.get("value"))
        if event is None:
            return None
        admitted = run.limiter.admit(*event, now)

        def send_events() -> None:
            for kind, value in admitted:
                self._send_event(run.order, kind, LogPart(value) if kind == "log" else value)

        return send_events if admitted else None

    def expect_end(self, errors: EndErrors) -> None:
        """Set the errors of the runs of a process that is being ended. Several callers may do so at once."""
        self._end_errors = errors if self._end_errors is None else self._end_errors.joined(errors)

    def process_ended(self, why: str) -> Notification:
        """End all runs of a process that exited, each with its error. Returns a callback to call without the
        lock, or None."""
        ending, self._end_errors = self._end_errors, None
        self._loaded.clear()
        affected = [run.order for run in self.running.values()]
        affected += [self.loading] if self.loading is not None else []
        if ending is None:
            self._died_together = {order.job for order in affected} if len(affected) > 1 else set()
            for job in self._died_together:
                self.suspects.add(job)
        for run in list(self.running.values()):
            if ending is None:
                error = self.death(run.order, why)
            else:
                error = ending.by_attempt.get(run.order.attempt) or ending.others or interrupted(why)
            error.unfinished = True
            self.end(run, error=error)
        return (
            partial(self._log_event, "model_process_died", why=why, runs=len(affected))
            if ending is None
            else None
        )

    def death(self, order: Order, why: str) -> GpuError:
        """Return the error of a run whose process died by itself: ProcessDied only if the run was alone."""
        if order.job in self._died_together:
            return interrupted(
                f"The model's process died with several runs in it ({why}): this one runs alone next."
            )
        return ProcessDied(f"The model's process died: {why}")

    @property
    def max_frame_bytes(self) -> int:
        """The size limit of one frame; read without the lock."""
        return SPARE_BYTES + max((order.max_result_bytes for order in self.now), default=0)

    @property
    def suspect_is_running(self) -> bool:
        """Return True while a suspect runs: no other run may begin meanwhile."""
        return any(run.order.job in self.suspects for run in self.running.values())

    def end(self, run: Run, *, result: Any = None, error: GpuError | None = None) -> None:
        """End a run with its result or error."""
        run.end(result=result, error=error)
        if error is None or (error.counts and not error.process_died):
            self.suspects.clear(run.order.job)
        self.running.pop(run.order.attempt, None)
        self._publish()
        self._loaded.release(run.order.model, alone=not self.running)
        self._lock.notify_all()

    def _publish(self) -> None:
        self.now = tuple(run.order for run in self.running.values())


class SwapQueue:
    """The orders that wait, and the decision about the next step: begin a run, or change which models are
    loaded.

    waiting: first come, first served. sick: why no run begins; empty: runs begin."""

    def __init__(
        self, owner: ProcessOwner, loaded: LoadedModels, table: RunTable, loader: ModelLoader
    ) -> None:
        self.waiting: list[Order] = []
        self.sick = ""
        self._owner, self._loaded, self._table, self._loader = owner, loaded, table, loader

    def next_step(self, order: Order) -> Run | Callable[[], None] | None:
        """Return the run if this order may begin, an operation to carry out before asking again, or None to
        wait.

        Raises GpuError."""
        if self.sick:
            raise GpuBusy(f"The GPU takes no runs: {self.sick}", retry_after_seconds=5.0)
        for other in self.waiting:
            if other is order:
                break
            if not self._loaded.is_warm(other.model) or other.job in self._table.suspects:
                return None  # it waits for memory, which an order that passes it would take
        if self._table.suspect_is_running or (self._table.running and order.job in self._table.suspects):
            return None
        if self._owner.is_stuck:
            raise GpuBusy("The model process was killed and is not gone.", retry_after_seconds=5.0)
        if self._owner.is_ending:
            return None
        process = self._owner.process
        if process is None:
            return self._loader.spawn
        if order.model not in self._owner.models:
            raise ServerFailed(f"This process has no model {order.model}.")
        if self._loaded.tainted:
            return None if self._table.running else self._loader.replace
        if self._loaded.is_warm(order.model):
            return self._table.begin(order, process.send) if self._loaded.has_capacity(order.model) else None
        try:
            plan = self._loaded.plan(order.model)
        except OSError as error:
            raise GpuBusy(f"The device can't be read: {error}") from error
        match plan:
            case NoRoom(why, permanent):
                raise DoesNotFit(why) if permanent else GpuBusy(why)
            case Load(evict):
                return lambda: self._load(order, evict)
            case Unload(models):
                return lambda: self._loader.unload(models)
            case Replace(why):
                self._loaded.tainted = why
                return self._loader.replace
        return None

    def ready(self) -> list[str]:
        """See `cache.ready`. Called without the lock, never blocks."""
        at_once = {name: model.at_once for name, model in self._owner.models.items()}
        waiting = [order.model for order in tuple(self.waiting)]
        return ready(list(self._loaded.warm.values()), waiting, at_once)

    def _load(self, order: Order, evict: Sequence[str]) -> None:
        self._table.loading = order
        try:
            self._loader.load(order, evict)
        finally:
            self._table.loading = None
