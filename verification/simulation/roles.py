"""The processes of the system, with the threads of production as fibers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from typing import Any

from django.db import DatabaseError

from gpus.leasing.values import Wakes
from gpus.models import Process as ProcessRow
from gpus.registry import processes
from jobs.execution.attempt_run import AttemptRun
from jobs.execution.gpu_worker import WATCH_SECONDS, GpuWorker
from jobs.execution.group_commit import MAX_BATCH, AfterCommit, GroupCommitWriter, LatestWrites, Write
from jobs.execution.presence import Presence
from jobs.execution.row_prefetch import GATHER_SECONDS
from jobs.execution.worker_state import WorkerProcess
from jobs.ports import Ports
from jobs.sweeps.registry import Entry, Sweeps
from jobs.sweeps.runner import Runner
from jobs.transitions import Touched
from verification.simulation.scheduler import Event, Process, Scheduler

GRACE_SECONDS = 20.0
KEEPER_SECONDS = 2.5
"""Longer than in production, as `BEAT_SECONDS`; leases are renewed as often."""
HEARTBEAT_SECONDS = 4.0
"""Interval of a worker's heartbeat in the database; longer than in production."""
PRESENCE_SECONDS = 2.0
"""Interval of checks of the layout in use; longer than in production."""
OLD_ROWS_SECONDS = 30.0
KEPT_SECONDS = 8.0
"""For a prefetched job: runs are long here, some longer than this."""


class FiberWriter(GroupCommitWriter):
    """The group commit with a fiber instead of its thread."""

    def __init__(
        self, after_commit: AfterCommit, latest_writes: LatestWrites, scheduler: Scheduler, process: Process
    ) -> None:
        # a lock would stop all fibers of the thread
        super().__init__(after_commit, latest_writes, turn=nullcontext())
        self._scheduler, self._process = scheduler, process
        self._filled = Event(scheduler)

    def start(self) -> None:
        self._scheduler.spawn(self._process, self._run)

    def submit(
        self,
        apply: Callable[[], Any],
        touched: Touched | None = None,
        *,
        gather: bool = True,
        size: int = 0,
        done: Future[Any] | None = None,
    ) -> Future[Any]:
        """See `GroupCommitWriter.submit`."""
        write = Write(apply, touched, done=done or Future())
        self._queue.append(write)
        self._filled.set()
        return write.done

    def _run(self) -> None:
        while True:
            self._filled.wait()
            self._filled.clear()
            self._scheduler.sleep(self._gather_seconds)
            while self._queue:
                self._commit([self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))])

    def _pause(self, seconds: float) -> None:
        self._scheduler.sleep(seconds)


class FiberPresence(Presence):
    """A process' sign of life, with a fiber instead of its thread."""

    def __init__(
        self, ports: Ports, scheduler: Scheduler, process: Process, kind: ProcessRow.Kind, **options: Any
    ) -> None:
        super().__init__(ports, kind, name=process.name, **options)
        self._scheduler, self._process = scheduler, process

    def start(self) -> None:
        self._ports.layouts.watch()
        self._scheduler.spawn(self._process, self._keep)

    def stop(self) -> None:
        self._stopped.set()
        with suppress(DatabaseError):
            processes.sign_off(self.name)

    def _keep(self) -> None:
        while not self._stopped.is_set():
            try:
                self.step()
            except Exception as error:
                self._scheduler.note(self._process.name, f"presence failed: {error}")
            self._scheduler.sleep(PRESENCE_SECONDS)


class FiberProcess(WorkerProcess):
    """A GPU worker's process whose runs wait in fibers."""

    def __init__(self, ports: Ports, scheduler: Scheduler, process: Process) -> None:
        super().__init__(ports.transport, name=process.name)
        self._scheduler, self._process = scheduler, process

    def new_event(self) -> Any:
        """Return an event that a fiber waits for."""
        return Event(self._scheduler)

    def wait(self, run: AttemptRun, seconds: float) -> None:
        run.woken.wait(seconds)

    def in_background(self, work: Callable[[], None]) -> None:
        """Run `work` in another fiber of the process."""
        self._scheduler.spawn(
            self._process, lambda: survive(self._scheduler, self._process, "beside a run", work)
        )

    def wait_for_commit(self, written: Future[Any]) -> None:
        """Suspend the fiber until the write is committed or has failed."""
        done = Event(self._scheduler)
        written.add_done_callback(lambda _: done.set())
        done.wait()


class FiberWorker(GpuWorker):
    """A GPU worker whose threads are fibers."""

    def __init__(self, ports: Ports, scheduler: Scheduler, process: Process, **options: Any) -> None:
        super().__init__(
            ports,
            FiberProcess(ports, scheduler, process),
            writer=lambda after, again: FiberWriter(after, again, scheduler, process),
            **options,
        )
        self._scheduler, self._process = scheduler, process
        self.nudged = Event(scheduler)  # type: ignore[assignment]
        self.row_prefetch.requested = Event(scheduler)  # type: ignore[assignment]
        # jobs are long here, and rows much older than in production must break no law
        self.row_prefetch.short_seconds, self.row_prefetch.fresh_seconds = math.inf, OLD_ROWS_SECONDS
        self.prefetch.short_seconds, self.prefetched.kept_seconds = math.inf, KEPT_SECONDS

    def start(self) -> None:
        if self.presence is not None:
            self.presence.start()
        self.completion.writer.start()
        self._scheduler.spawn(self._process, self._keep)
        self._scheduler.spawn(self._process, self._watch)
        self._scheduler.spawn(self._process, self._prefetch_rows)
        self._scheduler.spawn(self._process, self._write_heartbeats)

    def _watch(self) -> None:
        while True:
            self.nudged.wait(2.0 * WATCH_SECONDS)
            self.nudged.clear()
            self._step("watch", self.watch)

    def _keep(self) -> None:
        keeper, clock = self.completion.keeper, self.ports.clock
        while True:
            self._step("keeper", lambda: keeper.step(clock.monotonic()))
            self._scheduler.sleep(KEEPER_SECONDS)

    def _write_heartbeats(self) -> None:
        while True:
            self._scheduler.sleep(2.0 * WATCH_SECONDS)
            self._step("heartbeat", self.heartbeats.write_if_due)

    def _prefetch_rows(self) -> None:
        while True:
            self.row_prefetch.requested.wait()
            self._scheduler.sleep(GATHER_SECONDS)
            self._step("row-prefetch", self.row_prefetch.read_requested)

    def _step(self, name: str, step: Callable[[], Any]) -> None:
        survive(self._scheduler, self._process, name, step)


def survive(scheduler: Scheduler, process: Process, name: str, step: Callable[[], Any]) -> None:
    """Take a step; a worker's threads survive errors in one of their rounds."""
    try:
        step()
    except Exception as error:
        scheduler.note(process.name, f"{name} failed: {error}")


class WorkerRole:
    """A worker process. is_present: it writes signs of life to the database, which is only needed if layouts
    change."""

    def __init__(
        self, scheduler: Scheduler, process: Process, ports: Ports, is_present: bool = False
    ) -> None:
        self.process, self.ports = process, ports
        self.takes = True

        def presence(worker: GpuWorker) -> Presence:
            ready = worker.switch_readiness.ready_switches
            return FiberPresence(ports, scheduler, process, ProcessRow.Kind.GPU, ready=ready)

        make_presence = presence if is_present else None
        self.worker = FiberWorker(ports, scheduler, process, make_presence=make_presence)
        self._scheduler = scheduler
        self.worker.start()

    @property
    def takes_wakes(self) -> bool:
        """Return False while another layout is in use."""
        return self.takes and self.worker.takes_wakes()

    def work(self, pool: str, host: str | None) -> None:
        """Start a fiber that runs one wake. host: of a pinned server's wake; None: any."""
        self._scheduler.spawn(self.process, lambda: self._work(pool, host))

    def _work(self, pool: str, host: str | None) -> None:
        try:
            self.worker.work(pool, host)
        except Exception as error:  # Celery logs it and continues
            self._scheduler.note(self.process.name, f"task failed: {error}")

    def stop(self) -> None:
        """SIGTERM: drain, wait for the grace period, interrupt, write the queued rows, exit."""
        self.takes = False
        self._scheduler.spawn(self.process, self._stop)

    def _stop(self) -> None:
        self.worker.drain()
        self._until(lambda: not self.worker.busy(), GRACE_SECONDS)
        self.worker.interrupt()
        self._until(lambda: not self.worker.busy(), 10.0)
        self._until(lambda: not self.worker.completion.writer.backlog, 10.0)
        if self.worker.presence is not None:
            self.worker.presence.stop()
        self._scheduler.sleep(0.1)
        self._scheduler.kill(self.process)

    def _until(self, is_so: Callable[[], bool], seconds: float) -> None:
        until = self._scheduler.now + seconds
        while not is_so() and self._scheduler.now < until:
            self._scheduler.sleep(0.05)


class SweepsRole:
    """A process that runs the sweeps when beat ticks. is_present: see `WorkerRole`."""

    def __init__(
        self, scheduler: Scheduler, process: Process, ports: Ports, is_present: bool = False
    ) -> None:
        self.process, self.ports = process, ports
        self._scheduler = scheduler
        self._runner = Runner(
            ports, simulated(Sweeps()), in_thread=lambda work: scheduler.spawn(process, work)
        )
        if is_present:
            kind = ProcessRow.Kind.SWEEPS
            FiberPresence(ports, scheduler, process, kind, on_layout_overlap=self.tick).start()

    def tick(self) -> None:
        """Start a fiber that runs the due sweeps."""
        self._scheduler.spawn(self.process, self._tick)

    def _tick(self) -> None:
        try:
            self._runner.tick()
        except Exception as error:
            self._scheduler.note(self.process.name, f"tick failed: {error}")


class WebRole:
    """A web process; a request gets no answer if it dies. is_present: see `WorkerRole`."""

    def __init__(
        self, scheduler: Scheduler, process: Process, ports: Ports, is_present: bool = False
    ) -> None:
        self.process, self.ports = process, ports
        self._scheduler = scheduler
        if is_present:
            FiberPresence(ports, scheduler, process, ProcessRow.Kind.WEB).start()

    def call(self, service: Callable[[Ports], Any], seconds: float = 10.0) -> Any:
        """Return the service's result, or raise its exception; ConnectionError if no answer comes."""
        answers: list[tuple[Any, Exception | None]] = []
        done = Event(self._scheduler)

        def serve() -> None:
            try:
                answers.append((service(self.ports), None))
            except Exception as error:
                answers.append((None, error))
            done.set()

        self._scheduler.spawn(self.process, serve)
        done.wait(seconds)
        if not answers:
            raise ConnectionError("no answer")
        value, error = answers[0]
        if error is not None:
            raise error
        return value


LEFT_OUT = {"retention", "rollups"}
"""Sweeps that are not simulated: nothing grows old or is counted."""


def simulated(sweeps: Sweeps) -> Callable[[], dict[str, Entry]]:
    """Return a function for the simulated ones of these sweeps."""
    return lambda: {name: entry for name, entry in sweeps.entries().items() if name not in LEFT_OUT}


def single_wakes(wakes: Sequence[Wakes]) -> list[tuple[str, str | None]]:
    """Return one (pool, host) per wake."""
    return [(wake.pool, wake.host) for wake in wakes for _ in range(wake.count)]
