"""A GPU of this machine: its line of runs, its warm models, and the process that holds them.

Whoever asks for a run waits here until its model is loaded, in the order of asking. One of the waiting
threads at a time *moves* (spawns the process, unloads, loads); the others run or wait. Every error is a
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
from gpu_host.local.confinement import DEFAULT, Confinement
from gpu_host.local.device import Gauge
from gpu_host.local.load_unload import DoesNotCompute, ModelLoader
from gpu_host.local.loaded_models import Knobs, LoadedModels, Patience
from gpu_host.local.orders import Order, Run, Stopped, Verdicts, interrupted, timeout_errors
from gpu_host.local.output import remove_old
from gpu_host.local.process import GivenUp, ProcessOwner, never
from gpu_host.local.running import RunTable, SwapQueue
from gpus.errors import GpuError, Interrupted, RunFailed, ServerFailed
from gpus.runners.base import Abort, Finished, PollFailed, RunRequest, StillRunning
from gpus.runners.transport import check_storable

NUDGE_SECONDS = 0.1
_SLICE_SECONDS = 0.5


class LocalGpu:
    """paths: see `gpu_host.handlers.code.find_models`. environment: what pins the process to its GPU.
    is_gpu: a small kernel must run in each new process. confinement: what its process may not do.
    output_root: a run's files go to a folder named after its attempt. on_event: a run's progress and output
    (attempt, job, kind, value); output: lines that handlers print; happened: (event, fields), for the log.
    None of them may block."""

    def __init__(
        self,
        paths: Sequence[str],
        *,
        gauge: Gauge,
        environment: Mapping[str, str],
        output_root: Path,
        is_gpu: bool = False,
        knobs: Knobs | None = None,
        confinement: Confinement = DEFAULT,
        on_event: Callable[[Order, str, Any], None] = lambda order, kind, value: None,
        output: Callable[[str], None] = lambda line: None,
        happened: Callable[..., None] = lambda event, **fields: None,
    ) -> None:
        self.knobs = knobs or Knobs()
        on_event, output, happened = safely(on_event), safely(output), safely(happened)
        self._lock = threading.Condition()
        self._owner = ProcessOwner(
            paths,
            lock=self._lock,
            on_frame=lambda frame: self._table.on_frame(frame),  # noqa: PLW0108  (made below)
            on_exit=lambda why: self._table.process_ended(why),  # noqa: PLW0108
            output=output,
            environment=environment,
            confinement=confinement,
            most_bytes=lambda: self._table.most_bytes,
        )
        self._loaded = LoadedModels(self._owner, gauge, self.knobs, happened)
        self._table = RunTable(self._loaded, self._lock, on_event=on_event, happened=happened)
        self._loader = ModelLoader(
            self._owner,
            self._loaded,
            self._lock,
            busy=lambda: bool(self._table.running),
            is_gpu=is_gpu,
            end_process=self.end_process,
            death=self._table.death,
            happened=happened,
        )
        self._queue = SwapQueue(self._owner, self._loaded, self._table, self._loader)
        self._moving = self._resting = False
        self.kernel_why = ""
        """Why a small kernel did not run when one was last tried; empty: it did."""
        self._output_root, self._happened = output_root, happened

    def start(self) -> Mapping[str, Declared]:
        """The models, by name. Raises CannotStart, or what `ProcessOwner.spawn` raises."""
        with suppress(DoesNotCompute):  # it is there, and says why it takes nothing
            self._move(self._loader.spawn)
        return dict(self._owner.models)

    def stop(self) -> None:
        """Ends the process with everything in it."""
        self.release_memory()
        self.end_process(Verdicts(others=interrupted("Its worker stopped.")))

    @property
    def sick(self) -> str:
        """Why it takes nothing; empty while it does."""
        return self._queue.sick

    @sick.setter
    def sick(self, why: str) -> None:
        self._queue.sick = why

    # -- runs ---------------------------------------------------------------------------------------------

    def run(self, order: Order, patience: Patience) -> Any:
        """The result. Blocks while its model is loaded and while it runs; raises Interrupted once patience is
        over: then `stop_run` says what became of it."""
        patience.set_reader(partial(notify_waiters, self._lock))
        try:
            return self._await_end(self._admit(order, patience), patience)
        finally:
            patience.set_reader(None)

    def stop_run(self, attempt: str, *, why: GpuError | None = None) -> Stopped:
        """By a cancel, and if its handler does not heed that, by the process' end. why: what it then ended
        of."""
        with self._lock:
            run = self._table.running.get(attempt)
            if run is None or run.over:
                return Stopped.NOT_RUNNING
            run.cancel_sent = True
        run.send({"do": "cancel", "attempt": attempt})
        with self._lock:
            if self._lock.wait_for(lambda: run.over, timeout=self.knobs.cancel_seconds):
                return Stopped.OBEYED
        self._happened("run_killed", attempt=attempt, job_id=run.order.job)
        others = interrupted("Its process was ended for the sake of another run that would not stop.")
        error = why or interrupted("It was killed, because it would not stop.")
        self.end_process(Verdicts({attempt: error}, others))
        return Stopped.KILLED if run.over else Stopped.NOT_GONE

    def running(self) -> list[Order]:
        """Never waits."""
        return list(self._table.now)

    def runs(self) -> list[Run]:
        with self._lock:
            return list(self._table.running.values())

    def warm(self) -> list[str]:
        """Never waits."""
        return list(self._loaded.warm)

    def ready(self) -> list[str]:
        """Models whose jobs are better than others now, see `cache.ready`. Never waits."""
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
        """The session of the process, and of all that belongs to it."""
        return self._owner.session

    def end_process(self, verdicts: Verdicts) -> None:
        """With all its runs, each of which ends by its verdict. The next run starts a new one."""
        with self._lock:
            process = self._owner.process
            if process is None:
                return
            self._table.expect_end(verdicts)
        self._owner.end(process)

    def probe(self) -> str | None:
        """Whether a small kernel really runs, asked while nothing else does: a busy GPU is judged by its
        runs. None: not asked. A process that fails at it is replaced; why not, if a new one fails too."""
        with self._lock:
            gone = self._owner.process is None
            if self._moving or self._table.running or self._resting or (gone and not self.kernel_why):
                return None
            self._moving = True
        said: list[str] = []
        self._finish_move(lambda: said.append(self._loader.prove()))
        (self.kernel_why,) = said
        return self.kernel_why

    def release_memory(self) -> bool:
        """Gives all memory back, also what outlived the process, if nothing runs or waits; after that it
        spawns nothing by itself until the next `tick`. True: it did, or had none."""
        with self._lock:
            self._resting = True
            if self._table.running or self._queue.waiting or self._moving:
                return False
            if self._owner.process is None and not self._loaded.outlived:
                return True
            self._moving = True
        self._finish_move(self._loader.unload_everything)
        return True

    def tick(self) -> None:
        """One look at what nobody asked for: old files and idle models leave, a process that leaks is
        replaced. On a GPU that takes nothing only the files: it may hang whoever asks it for more."""
        remove_old(self._output_root, [order.attempt for order in self.running()])
        with self._lock:
            self._resting = False
            if self.sick or self._queue.waiting or self._moving or self._owner.process is None:
                return
            idle = self._loaded.idle()
            leaking = not self._table.running and self._loaded.leaking()
            if not idle and not leaking:
                return
            self._moving = True
        self._finish_move(self._loader.replace if leaking else lambda: self._loader.unload(idle))

    # -- the line -----------------------------------------------------------------------------------------

    def _admit(self, order: Order, patience: Patience) -> Run:
        with self._lock:
            self._queue.waiting.append(order)
        try:
            while True:
                with self._lock:
                    if patience.fired:
                        raise interrupted("It was let go before it began.")
                    step = None if self._moving else self._queue.next_step(order)
                    if step is None:
                        self._lock.wait(_SLICE_SECONDS)
                        continue
                    if isinstance(step, Run):
                        self._queue.waiting.remove(order)
                        break
                    self._moving = True
                self._finish_move(partial(self._with_patience, step, patience))
        except BaseException:
            with self._lock:
                self._queue.waiting.remove(order)
                self._lock.notify_all()
            raise
        self._send(step)
        return step

    def _with_patience(self, step: Callable[[], None], patience: Patience) -> None:
        """A move ends with the patience of who makes it, and the process with it unless others run there: a
        spawn or a load can't be stopped otherwise, and may take minutes."""
        self._owner.give_up = lambda: patience.fired and not self._table.running
        try:
            step()
        except GivenUp as error:
            self.end_process(Verdicts())
            raise interrupted("It was let go before it began.") from error
        finally:
            self._owner.give_up = never

    def _send(self, run: Run) -> None:
        try:
            run.send(run.order.frame(self._output_root))
        except (TypeError, ValueError, RecursionError) as error:
            with self._lock:
                self._table.end(run, error=ServerFailed(f"The payload can't be sent: {error}"))

    def _await_end(self, run: Run, patience: Patience) -> Any:
        until = run.began + run.order.limit_seconds
        with self._lock:
            while not run.over:
                if patience.fired:
                    raise Interrupted("The run was let go.")
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

    # -- moves: one at a time, without the lock ---------------------------------------------------------

    def _move(self, move: Callable[[], None]) -> None:
        with self._lock:
            self._lock.wait_for(lambda: not self._moving)
            self._moving = True
        self._finish_move(move)

    def _finish_move(self, move: Callable[[], None]) -> None:
        try:
            move()
        except DoesNotCompute as error:
            self.kernel_why = self.sick = error.message
            raise
        finally:
            with self._lock:
                self._moving = False
                self._lock.notify_all()


def safely(callback: Callable[..., Any]) -> Callable[..., None]:
    """Wrap a callback so that it never raises: a log on a full disk must not fail a run."""

    def call(*arguments: Any, **values: Any) -> None:
        with suppress(Exception):
            callback(*arguments, **values)

    return call


def notify_waiters(lock: threading.Condition) -> None:
    """Notify the condition's waiters, unless its lock stays taken: it is held while the driver is asked, a
    cancel of all runs must not wait for that, and the waiters poll as well."""
    if lock.acquire(timeout=NUDGE_SECONDS):
        lock.notify_all()
        lock.release()


class LocalRunner:
    """`gpus.runners.base.Runner` over a `LocalGpu`. The run limit counts from when the model is loaded."""

    is_polled = False
    is_pushed = False
    is_pinned = True
    calls_on_sent = False
    answer_ends_run = False

    def __init__(self, gpu: LocalGpu) -> None:
        self._gpu = gpu

    def start(self, run: RunRequest, *, abort: Abort) -> Finished:
        result = self._gpu.run(
            Order(
                attempt=run.attempt_id,
                job=run.job_id,
                model=run.model.name,
                payload=run.payload,
                limit_seconds=min(run.model.run_limit_seconds, run.limit_seconds),
                max_result_bytes=run.model.max_response_bytes,
                tell=run.report,
            ),
            abort,
        )
        size = len(json.dumps(result, separators=(",", ":")))
        if size > run.model.max_response_bytes:
            raise RunFailed(f"The result has {size} bytes, {run.model.max_response_bytes} at most.")
        check_storable(result)
        return Finished(result)

    def poll(self, run: RunRequest, remote_id: str, *, abort: Abort) -> Finished | StillRunning:
        raise PollFailed("A run on this machine has no remote id.", gone=True)

    def cancel(self, run: RunRequest, remote_id: str | None) -> bool:
        """What does not heed the cancel is killed with its process. False: that is not gone."""
        return self._gpu.stop_run(run.attempt_id) is not Stopped.NOT_GONE

    def read_pushed(self, run: RunRequest, body: Mapping[str, object]) -> Finished | StillRunning:
        return StillRunning()
