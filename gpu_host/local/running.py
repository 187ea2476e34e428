"""The runs in a model process, and the queue of those that wait for it. The methods of both are called with
the lock of the GPU held."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpu_host.local.cache import Load, NoRoom, Replace, Unload, ready
from gpu_host.local.frames import Frame, read_event, read_failure, read_why
from gpu_host.local.load_unload import ModelLoader
from gpu_host.local.loaded_models import LoadedModels
from gpu_host.local.orders import Order, Run, Verdicts, error_of, interrupted
from gpu_host.local.process import Notification, ProcessOwner
from gpus.errors import DoesNotFit, GpuBusy, GpuError, ProcessDied, ServerFailed

SPARE_BYTES = 1024 * 1024
"""Of a frame, beside the result in it."""


KEPT_SUSPECTS = 1000
"""The oldest are forgotten beyond it: a job that never comes back ends elsewhere."""


class Suspects:
    """Jobs by id that may have brought a process down, where they were not alone in it.

    A crash says nothing of which run caused it. Each that was there loses its attempt at no cost and is a
    suspect: it runs alone in the process from then on, until it ended by itself. So nobody pays for another's
    crash, the culprit pays for each further one, and a worker loses no job for free twice.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, job: object) -> bool:
        return job in self._jobs

    def add(self, job: str) -> None:
        self._jobs[job] = None
        self._jobs.move_to_end(job)
        while len(self._jobs) > KEPT_SUSPECTS:
            self._jobs.popitem(last=False)

    def clear(self, job: str) -> None:
        self._jobs.pop(job, None)


class RunTable:
    """running: by attempt. now: the same, to be read without the lock."""

    def __init__(
        self,
        loaded: LoadedModels,
        lock: threading.Condition,
        *,
        on_event: Callable[[Order, str, Any], None],
        happened: Callable[..., None],
    ) -> None:
        self.running: dict[str, Run] = {}
        self.now: tuple[Order, ...] = ()
        self.suspects = Suspects()
        self.loading: Order | None = None
        """The order whose model is being loaded: its code may end the process."""
        self._in_company: set[str] = set()
        """The jobs of the last process that died by itself, if there were several."""
        self._verdicts: Verdicts | None = None
        """What the end of the process means for its runs, while it is being ended."""
        self._loaded, self._lock, self._send_event, self._happened = loaded, lock, on_event, happened

    def begin(self, order: Order, send: Callable[[Frame], None]) -> Run:
        now = time.monotonic()
        run = Run(order, send, began=now, last_sign=now)
        self.running[order.attempt] = run
        self._publish()
        self._loaded.acquire(order.model)
        return run

    def on_frame(self, frame: Frame) -> Notification:
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

    def _on_event(self, run: Run, frame: Frame, now: float) -> Notification:
        heard = read_event(frame.get("kind"), frame.get("value"))
        if heard is None:
            return None
        if heard[0] == "progress":
            run.progress = heard[1]
        let = run.limiter.admit(*heard, now)

        def tell() -> None:
            for kind, value in let:
                self._send_event(run.order, kind, value)

        return tell if let else None

    def expect_end(self, verdicts: Verdicts) -> None:
        """The process is being ended. Several may want that at once, each for its reason."""
        self._verdicts = verdicts if self._verdicts is None else self._verdicts.joined(verdicts)

    def process_ended(self, why: str) -> Notification:
        verdicts, self._verdicts = self._verdicts, None
        self._loaded.clear()
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
                error = verdicts.named.get(run.order.attempt) or verdicts.others or interrupted(why)
            error.unfinished = True
            self.end(run, error=error)
        return (
            partial(self._happened, "model_process_died", why=why, runs=len(there))
            if verdicts is None
            else None
        )

    def death(self, order: Order, why: str) -> GpuError:
        """Return the error of a run whose process ended by itself: a death only for a run that was alone."""
        if order.job in self._in_company:
            return interrupted(
                f"The model's process died with several runs in it ({why}): this one runs alone next."
            )
        return ProcessDied(f"The model's process died: {why}")

    @property
    def most_bytes(self) -> int:
        """Of one frame; read without the lock."""
        return SPARE_BYTES + max((order.max_result_bytes for order in self.now), default=0)

    @property
    def is_alone(self) -> bool:
        """Return True while a suspect runs: no other run may begin beside it."""
        return any(run.order.job in self.suspects for run in self.running.values())

    def end(self, run: Run, *, result: Any = None, error: GpuError | None = None) -> None:
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
    """waiting: in the order of asking. sick: why nothing begins; empty while it does."""

    def __init__(
        self, owner: ProcessOwner, loaded: LoadedModels, table: RunTable, loader: ModelLoader
    ) -> None:
        self.waiting: list[Order] = []
        self.sick = ""
        self._owner, self._loaded, self._table, self._loader = owner, loaded, table, loader

    def next_step(self, order: Order) -> Run | Callable[[], None] | None:
        """A run: it may begin. A move: do it, then ask again. None: wait. Raises GpuError."""
        if self.sick:
            raise GpuBusy(f"The GPU takes no runs: {self.sick}", retry_after_seconds=5.0)
        for other in self.waiting:
            if other is order:
                break
            if not self._loaded.is_warm(other.model) or other.job in self._table.suspects:
                return None  # it waits for room: who passed it would take that away
        if self._table.is_alone or (self._table.running and order.job in self._table.suspects):
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
            case NoRoom(why, for_ever):
                raise DoesNotFit(why) if for_ever else GpuBusy(why)
            case Load(evict):
                return lambda: self._load(order, evict)
            case Unload(models):
                return lambda: self._loader.unload(models)
            case Replace(why):
                self._loaded.tainted = why
                return self._loader.replace
        return None

    def ready(self) -> list[str]:
        """See `cache.ready`. Without the lock: never waits."""
        at_once = {name: model.at_once for name, model in self._owner.models.items()}
        waiting = [order.model for order in tuple(self.waiting)]
        return ready(list(self._loaded.warm.values()), waiting, at_once)

    def _load(self, order: Order, evict: Sequence[str]) -> None:
        self._table.loading = order
        try:
            self._loader.load(order, evict)
        finally:
            self._table.loading = None
