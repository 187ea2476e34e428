"""Starts, replaces and ends the model process, and loads and unloads models: one operation at a time, without
the lock of the GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from gpu_host.handlers.errors import Failure, storable
from gpu_host.local.frames import read_why
from gpu_host.local.loaded_models import LoadedModels
from gpu_host.local.orders import EndErrors, Order, error_of, interrupted
from gpu_host.local.process import CannotStart, Overdue, ProcessGone, ProcessOwner
from gpus.errors import GpuBusy, GpuError, RunTimedOut

NOT_STARTED_REST_SECONDS = 30.0
KERNEL_LIMIT_SECONDS = 30.0


class KernelFailed(GpuBusy):
    """A small kernel failed in a new process too: the GPU is at fault."""


class ModelLoader:
    """The operations on the model process, which the GPU runs one at a time.

    busy: returns True while a run is active; called with the lock held. end_process: ends the process with
    all its runs. death: returns the error of a run whose process died."""

    def __init__(
        self,
        owner: ProcessOwner,
        loaded: LoadedModels,
        lock: threading.Condition,
        *,
        busy: Callable[[], bool],
        is_gpu: bool,
        end_process: Callable[[EndErrors], None],
        death: Callable[[Order, str], GpuError],
        log_event: Callable[..., None],
    ) -> None:
        self._owner, self._loaded, self._lock = owner, loaded, lock
        self._busy, self._end_process, self._log_event = busy, end_process, log_event
        self._death, self._is_gpu = death, is_gpu

    def spawn(self) -> None:
        """Start the process and run a small kernel in it. Raises GpuBusy; KernelFailed if the GPU is at
        fault."""
        if self._owner.is_ending:
            raise _not_started("The model process before this one was killed and is not gone yet.")
        try:
            self._owner.spawn()
            why = self._run_kernel()  # before memory is measured: the driver's context belongs to no model
            self._loaded.begin()
        except (ProcessGone, Overdue) as error:
            self._owner.end()
            raise _not_started(f"The model process does not start: {error}") from error
        except OSError as error:  # no memory for a process, or the device can't be read
            self._owner.end()
            raise _not_started(f"The model process can't be started: {error}") from error
        except CannotStart as error:
            raise _not_started(f"The models can't be imported: {error}") from error
        if why:
            self._owner.end()
            why = f"The GPU does not compute, in a new process: {why}"
            raise KernelFailed(why, retry_after_seconds=NOT_STARTED_REST_SECONDS)
        self._log_event("model_process_started", session=self._owner.session)

    def ensure_kernel_runs(self) -> str:
        """Run a small kernel in this process or, if that fails, in a new one. Return the last error, or
        empty."""
        why = "there was no process"
        if self._owner.process is not None:
            try:
                why = self._run_kernel()
            except ProcessGone as error:
                why = str(error)
        if not why:
            return ""
        self._loaded.tainted = f"a small kernel could not run: {why}"
        try:
            self.replace()
        except GpuBusy as error:
            return error.message
        return ""

    def _run_kernel(self) -> str:
        """Return why the kernel failed; empty: it ran, or there is no GPU. Raises ProcessGone."""
        if not self._is_gpu:
            return ""
        try:
            return read_why(
                self._owner.ask({"do": "probe", "gpu": True}, "probed", KERNEL_LIMIT_SECONDS).get("why")
            )
        except Overdue:
            return f"a small kernel did not end in {KERNEL_LIMIT_SECONDS:.0f} s"

    def replace(self) -> None:
        """End the process and start a new one. Raises as `spawn`."""
        self._log_event("model_process_replaced", why=self._loaded.tainted or "it leaks")
        self.end(EndErrors(others=interrupted("Its process was replaced.")))
        self.spawn()

    def end(self, errors: EndErrors) -> None:
        """End the process, after unloading models that would survive it."""
        self._loaded.unload_held_outside()
        self._end_process(errors)

    def unload_everything(self) -> None:
        """Free all our memory. After a crash, a new process without models unloads the models held outside
        it; this is tried once, and the next process does the rest."""
        try:
            if self._owner.process is None:
                self._owner.spawn()
            self.end(EndErrors())
        except (CannotStart, ProcessGone, Overdue, OSError) as error:
            self._log_event("unload_failed", why=str(error))
            self._end_process(EndErrors())
        finally:
            self._loaded.outlived = False

    def unload(self, models: Sequence[str]) -> None:
        """Unload models; replace the process if their memory is not freed and no run is active."""
        try:
            self._loaded.unload(models)
        except (ProcessGone, Overdue) as error:
            self._loaded.tainted = str(error)
        with self._lock:
            must_replace = bool(self._loaded.tainted) and not self._busy()
        if must_replace:
            self.replace()

    def load(self, order: Order, evict: Sequence[str]) -> None:
        """Load the model for this order. Raises the GpuError that a failed load means for it."""
        model = order.model
        if evict:
            self.unload(evict)
            if self._loaded.tainted:
                return  # the runs that hold the old process end first
        try:
            failure = self._loaded.load(model)
            if failure is not None and failure.code == "out_of_memory":
                failure = self.load_alone(model, failure)
        except ProcessGone as error:
            if error.ours:
                raise interrupted("The process was ended while it loaded the model.") from error
            raise self._death(order, f"while it loaded {model}: {error}") from error
        except Overdue as error:
            bystanders = interrupted(f"Its process was ended: the load of {model} did not end.")
            self._end_process(EndErrors(others=bystanders))
            late = RunTimedOut(f"{model} was not loaded in time: {error}")
            late.suspect, late.process_died = False, True
            raise late from error
        except OSError as error:
            raise GpuBusy(f"The device can't be read: {error}") from error
        if failure is None:
            return
        if failure.sticky:
            self._loaded.tainted = failure.text
        raise error_of(failure)

    def load_alone(self, model: str, failure: Failure) -> Failure | None:
        """Retry a load that ran out of memory, after unloading all models without a run."""
        with self._lock:
            idle = [one.name for one in self._loaded.warm.values() if not one.running]
        if not idle:
            return failure
        self.unload(idle)
        return failure if self._loaded.tainted else self._loaded.load(model)


def _not_started(why: str) -> GpuBusy:
    """Return an error that costs the job no try: it is queued again at its place, and the server rests."""
    return GpuBusy(storable(why), retry_after_seconds=NOT_STARTED_REST_SECONDS)
