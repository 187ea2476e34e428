"""A GPU of this machine: its queue of runs, its loaded models, and the process that holds them.

A thread that asks for a run waits here until its model is loaded, first come, first served. One waiting
thread at a time carries out an operation (spawn, unload, load); the others run or wait. Every error is a
`gpus.errors.GpuError`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gpu_host.handlers.code import Declared
from gpu_host.handlers.files import CACHE_BYTES, has_saved
from gpu_host.local.confinement import DEFAULT_CONFINEMENT, Confinement
from gpu_host.local.device import Gauge
from gpu_host.local.load_unload import KernelFailed, ModelLoader
from gpu_host.local.loaded_models import DEFAULT_OPTIONS, AbortSignal, LoadedModels, LocalGpuOptions
from gpu_host.local.orders import EndErrors, Order, Run, Stopped, interrupted, timeout_errors
from gpu_host.local.output import remove_old
from gpu_host.local.process import GivenUp, ProcessOwner, never
from gpu_host.local.result_files import with_files_saved
from gpu_host.local.running import RunTable, SwapQueue
from gpus.errors import GpuError, Interrupted, RunFailed, ServerFailed
from gpus.runners.base import CONFIRMED_CANCEL, Abort, Finished, PollFailed, RunRequest, StillRunning
from gpus.runners.transport import check_storable
from gpus.runners.usage import usage_in

NOTIFY_SECONDS = 0.1
_SLICE_SECONDS = 0.5


class LocalGpu:
    """Runs models on one device, at most one model process at a time.

    paths: see `gpu_host.handlers.code.find_models`. gauge: reads the device's memory. environment: variables
    that pin the process to its GPU. is_gpu: a small kernel must run in each new process. confinement: limits
    of the model process. output_root: folder in which each run gets a folder named after its attempt.
    on_event: receives progress and output of a run as (order, kind, value). output: receives lines that
    handlers print. log_event: receives (event, fields) for the log. The three callbacks must not block.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        gauge: Gauge,
        environment: Mapping[str, str],
        output_root: Path,
        is_gpu: bool = False,
        options: LocalGpuOptions = DEFAULT_OPTIONS,
        confinement: Confinement = DEFAULT_CONFINEMENT,
        on_event: Callable[[Order, str, Any], None] = lambda order, kind, value: None,
        output: Callable[[str], None] = lambda line: None,
        log_event: Callable[..., None] = lambda event, **fields: None,
    ) -> None:
        self.options = options
        on_event, output, log_event = safely(on_event), safely(output), safely(log_event)
        self._lock = threading.Condition()
        self._owner = ProcessOwner(
            paths,
            lock=self._lock,
            on_frame=lambda frame: self._table.on_frame(frame),  # noqa: PLW0108  (made below)
            on_exit=lambda why: self._table.process_ended(why),  # noqa: PLW0108
            output=lambda stream, line: self._on_line(stream, line),  # noqa: PLW0108
            environment=environment,
            confinement=confinement,
            max_frame_bytes=lambda: self._table.max_frame_bytes,
        )
        self._loaded = LoadedModels(self._owner, gauge, self.options, log_event)
        self._table = RunTable(self._loaded, self._lock, on_event=on_event, log_event=log_event)
        self._loader = ModelLoader(
            self._owner,
            self._loaded,
            self._lock,
            busy=lambda: bool(self._table.running),
            is_gpu=is_gpu,
            end_process=self.end_process,
            death=self._table.death,
            log_event=log_event,
        )
        self._queue = SwapQueue(self._owner, self._loaded, self._table, self._loader)
        self._operating = self._respawn_paused = False
        self.kernel_error = ""
        """Why the last small kernel failed; empty: it ran."""
        self._output_root, self._log_event = output_root, log_event
        self._output = output

    def start(self) -> Mapping[str, Declared]:
        """Spawn the process; return its models by name. Raises CannotStart, or the errors of
        `ProcessOwner.spawn`."""
        with suppress(KernelFailed):  # the GPU stays registered, and `sick` has the reason
            self._run_exclusive(self._loader.spawn)
        return dict(self._owner.models)

    def stop(self) -> None:
        """End the process and everything in it."""
        self.release_memory()
        self.end_process(EndErrors(others=interrupted("Its worker stopped.")))

    @property
    def sick(self) -> str:
        """Why no run may begin; empty: runs may begin."""
        return self._queue.sick

    @sick.setter
    def sick(self, why: str) -> None:
        self._queue.sick = why

    # -- runs ---------------------------------------------------------------------------------------------

    def run(self, order: Order, abort: AbortSignal) -> Any:
        """Load the model if needed, run it, and return the result; block meanwhile.

        Raises Interrupted once `abort` has fired: then call `stop_run` to end the run and learn its outcome.
        """
        abort.set_reader(partial(notify_waiters, self._lock))
        try:
            return self._await_end(self._admit(order, abort), abort)
        finally:
            abort.set_reader(None)

    def stop_run(self, attempt: str, *, why: GpuError | None = None) -> Stopped:
        """Cancel a run; kill its process if the handler does not stop in time. why: the error that a killed
        run ends with."""
        with self._lock:
            run = self._table.running.get(attempt)
            if run is None or run.over:
                return Stopped.NOT_RUNNING
            run.cancel_sent = True
        run.send({"do": "cancel", "attempt": attempt})
        with self._lock:
            if self._lock.wait_for(lambda: run.over, timeout=self.options.cancel_seconds):
                return Stopped.OBEYED
        self._log_event("run_killed", attempt=attempt, job_id=run.order.job)
        others = interrupted("Its process was ended because another run there would not stop.")
        error = why or interrupted("It was killed, because it would not stop.")
        self.end_process(EndErrors({attempt: error}, others))
        return Stopped.KILLED if run.over else Stopped.NOT_GONE

    def folder_of(self, attempt: str) -> Path:
        """Return the folder for the files of a run."""
        return self._output_root / attempt

    def running(self) -> list[Order]:
        """Return the orders that run now. Never blocks."""
        return list(self._table.now)

    def runs(self) -> list[Run]:
        """Return the runs that run now."""
        with self._lock:
            return list(self._table.running.values())

    def warm(self) -> list[str]:
        """Return the names of the loaded models. Never blocks."""
        return list(self._loaded.warm)

    def ready(self) -> list[str]:
        """Return the models that can start a run without a load, see `cache.ready`. Never blocks."""
        return self._queue.ready()

    @property
    def models(self) -> Mapping[str, Declared]:
        return self._owner.models

    @property
    def loads(self) -> int:
        return self._loaded.loads

    @property
    def spawned(self) -> int:
        return self._owner.spawned

    @property
    def session(self) -> int | None:
        """The session id of the process and of all its children."""
        return self._owner.session

    def end_process(self, errors: EndErrors) -> None:
        """End the process with all its runs, each with its error. The next run spawns a new process."""
        with self._lock:
            process = self._owner.process
            if process is None:
                return
            self._table.expect_end(errors)
        self._owner.end(process)

    def probe(self) -> str | None:
        """Run a small kernel to check that the GPU computes, unless it is busy: a busy GPU is judged by its
        runs.

        If the kernel fails, the process is replaced and the kernel tried once more. Returns why it failed
        there too, empty if it ran, None if it was not tried."""
        with self._lock:
            gone = self._owner.process is None
            if (
                self._operating
                or self._table.running
                or self._respawn_paused
                or (gone and not self.kernel_error)
            ):
                return None
            self._operating = True
        errors: list[str] = []
        self._finish_operation(lambda: errors.append(self._loader.ensure_kernel_runs()))
        (self.kernel_error,) = errors
        return self.kernel_error

    def release_memory(self) -> bool:
        """Free all memory, including models held outside the process, unless a run runs or waits.

        Until the next `tick` only a run spawns a process again. Returns True if the memory is free."""
        with self._lock:
            self._respawn_paused = True
            if self._table.running or self._queue.waiting or self._operating:
                return False
            if self._owner.process is None and not self._loaded.outlived:
                return True
            self._operating = True
        self._finish_operation(self._loader.unload_everything)
        return True

    def tick(self) -> None:
        """Housekeeping: remove old files, unload idle models, replace a process that leaks.

        On a sick GPU only files are removed: a call to its driver may hang."""
        running = [order.attempt for order in self.running()]
        remove_old(self._output_root, running, input_seconds=self.options.input_cache_seconds)
        with self._lock:
            self._respawn_paused = False
            if self.sick or self._queue.waiting or self._operating or self._owner.process is None:
                return
            idle = self._loaded.idle()
            leaking = not self._table.running and self._loaded.leaking()
            if not idle and not leaking:
                return
            self._operating = True
        self._finish_operation(self._loader.replace if leaking else lambda: self._loader.unload(idle))

    def _on_line(self, stream: str, line: str) -> None:
        """Pass on a line that was written past Python's streams, to its run if that is known."""
        if not self._table.on_line(stream, line):
            self._output(line)

    # -- the queue ----------------------------------------------------------------------------------------

    def _admit(self, order: Order, abort: AbortSignal) -> Run:
        with self._lock:
            self._queue.waiting.append(order)
        try:
            while True:
                with self._lock:
                    if abort.fired:
                        raise interrupted("It was stopped before it began.")
                    step = None if self._operating else self._queue.next_step(order)
                    if step is None:
                        self._lock.wait(_SLICE_SECONDS)
                        continue
                    if isinstance(step, Run):
                        self._queue.waiting.remove(order)
                        break
                    self._operating = True
                self._finish_operation(partial(self._abortable, step, abort))
        except BaseException:
            with self._lock:
                self._queue.waiting.remove(order)
                self._lock.notify_all()
            raise
        self._send(step)
        return step

    def _abortable(self, step: Callable[[], None], abort: AbortSignal) -> None:
        """Run an operation; if `abort` fires, end the process unless others run there.

        A spawn or a load can't be stopped otherwise, and may take minutes."""
        self._owner.give_up = lambda: abort.fired and not self._table.running
        try:
            step()
        except GivenUp as error:
            self.end_process(EndErrors())
            raise interrupted("It was stopped before it began.") from error
        finally:
            self._owner.give_up = never

    def _send(self, run: Run) -> None:
        try:
            run.send(run.order.frame(self._output_root))
        except (TypeError, ValueError, RecursionError) as error:
            with self._lock:
                self._table.end(run, error=ServerFailed(f"The payload can't be sent: {error}"))

    def _await_end(self, run: Run, abort: AbortSignal) -> Any:
        until = run.began + run.order.limit_seconds
        with self._lock:
            while not run.over:
                if abort.fired:
                    raise Interrupted("The run was stopped.")
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._lock.wait(min(left, _SLICE_SECONDS))
        if not run.over:
            late, killed = timeout_errors(run.order)
            stopped = self.stop_run(run.order.attempt, why=killed)
            if stopped is Stopped.OBEYED:
                raise late
            if stopped is Stopped.NOT_GONE:
                killed.suspect = True
                raise killed
        if run.error is not None:
            raise run.error
        return run.result

    # -- operations: one at a time, without the lock ----------------------------------------------------

    def _run_exclusive(self, operation: Callable[[], None]) -> None:
        with self._lock:
            self._lock.wait_for(lambda: not self._operating)
            self._operating = True
        self._finish_operation(operation)

    def _finish_operation(self, operation: Callable[[], None]) -> None:
        try:
            operation()
        except KernelFailed as error:
            self.kernel_error = self.sick = error.message
            raise
        finally:
            with self._lock:
                self._operating = False
                self._lock.notify_all()


def safely(callback: Callable[..., Any]) -> Callable[..., None]:
    """Wrap a callback so that it never raises: a log on a full disk must not fail a run."""

    def call(*arguments: Any, **values: Any) -> None:
        with suppress(Exception):
            callback(*arguments, **values)

    return call


def notify_waiters(lock: threading.Condition) -> None:
    """Notify the condition's waiters, unless its lock stays taken for `NOTIFY_SECONDS`.

    The lock is held during driver calls; a cancel of all runs must not wait for them, and the waiters poll as
    well."""
    if lock.acquire(timeout=NOTIFY_SECONDS):
        lock.notify_all()
        lock.release()


class LocalRunner:
    """`gpus.runners.base.Runner` on a `LocalGpu`. The run limit counts from the end of the model's load.

    input_cache_bytes: of the inputs that are kept for later runs.
    """

    is_polled = False
    is_pushed = False
    is_pinned = True
    calls_on_sent = False
    answer_ends_run = False
    stopped_by = CONFIRMED_CANCEL

    def __init__(self, gpu: LocalGpu, *, input_cache_bytes: int = CACHE_BYTES) -> None:
        self._gpu, self._input_cache_bytes = gpu, input_cache_bytes

    def start(self, run: RunRequest, *, abort: Abort) -> Finished:
        """Run the model to its end and return the result. Raises GpuError."""
        result = self._gpu.run(
            Order(
                attempt=run.attempt_id,
                job=run.job_id,
                model=run.model.name,
                payload=run.payload,
                limit_seconds=min(run.model.run_limit_seconds, run.limit_seconds),
                max_result_bytes=run.model.max_response_bytes,
                input_cache_bytes=self._input_cache_bytes,
                on_output=run.report,
            ),
            abort,
        )
        text = json.dumps(result, separators=(",", ":"))
        if len(text) > run.model.max_response_bytes:
            raise RunFailed(f"The result has {len(text)} bytes, {run.model.max_response_bytes} at most.")
        check_storable(result)
        folder = self._gpu.folder_of(run.attempt_id)
        finish = None
        if has_saved(text, json.dumps(str(folder))[1:-1]):
            finish = partial(with_files_saved, result, folder)
        return Finished(result, usage_in(result), finish)

    def poll(self, run: RunRequest, remote_id: str, *, abort: Abort) -> Finished | StillRunning:
        """Raise PollFailed: `start` returns the result, so there is nothing to poll."""
        raise PollFailed("A run on this machine has no remote id.", gone=True)

    def cancel(self, run: RunRequest, remote_id: str | None) -> bool:
        """Cancel a run; kill its process if it does not stop. False: the process has not exited."""
        return self._gpu.stop_run(run.attempt_id) is not Stopped.NOT_GONE

    def read_pushed(self, run: RunRequest, body: Mapping[str, object]) -> Finished | StillRunning:
        """Never called: models here push no results."""
        return StillRunning()
