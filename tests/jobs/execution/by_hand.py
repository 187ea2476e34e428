"""A worker without threads: the test advances its commits, its clock and its GPU; leases and rows are
real."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpus.leasing.contract import Leases
from gpus.runners.base import CONFIRMED_CANCEL, Abort, Accepted, Finished, RunRequest, StillRunning
from jobs.execution.attempt_run import AttemptRun
from jobs.execution.claiming import Claimed
from jobs.execution.follow_ups import push_tickets
from jobs.execution.gpu_worker import GpuWorker
from jobs.execution.group_commit import AfterCommit, LatestWrites, Write, write_batch
from jobs.execution.prefetch import Ready
from jobs.execution.slot_loop import SlotLoop, TimeSlice, WorkReport
from jobs.execution.worker_state import WorkerProcess
from jobs.models import Job
from jobs.transitions import Touched
from tests.support.factories import make_job
from tests.support.fakes import ManualClock
from tests.support.worker_harness import WorkerHarness

OLD = 1e6
"""The age of a generation whose starts are not awaited."""


OVER, GOES_ON = TimeSlice(0.0, -1e9), TimeSlice(1e9, 0.0)


class HandWriter:
    """Commits on the test's call, or with `at_once` before the slot's thread takes its next step.
    gathered: of each write, whether others were expected with it."""

    def __init__(self, after_commit: AfterCommit, latest_writes: LatestWrites) -> None:
        self.at_once = True
        self.failing = False
        self.backlog = 0
        self.gathered: list[bool] = []
        self._latest_writes = latest_writes
        self._after_commit = after_commit
        self._queue: list[Write] = []

    def start(self) -> None: ...

    def submit(
        self,
        apply: Callable[[], Any],
        touched: Touched | None = None,
        *,
        gather: bool = True,
        size: int = 0,
        done: Future[Any] | None = None,
    ) -> Future[Any]:
        write = Write(apply, touched, done=done or Future())
        self._queue.append(write)
        self.gathered.append(gather)
        if self.at_once:
            self.commit()
        return write.done

    def commit(self, *, after_failure: bool = False) -> None:
        """In the writer's order: the commit, `after_commit`, then the futures."""
        batch, self._queue = self._queue, []
        if after_failure:
            batch[:0] = self._latest_writes()
        outcomes = write_batch(batch)
        self._after_commit([outcome for outcome in outcomes if not isinstance(outcome, BaseException)])
        for write, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                write.done.set_exception(outcome)
            else:
                write.done.set_result(outcome)

    def refuse(self, error: Exception) -> None:
        """Refuse the queued writes, as if the database had failed too often to commit them."""
        batch, self._queue = self._queue, []
        for write in batch:
            write.done.set_exception(error)

    def stop(self, timeout_seconds: float = 10.0) -> bool:
        return True


class Gpu:
    """Every request takes `seconds` of the test's clock and is answered by `answers`, the last one for ever;
    an exception among them is raised. sent: the jobs whose requests arrived; cancelled: those it stopped."""

    calls_on_sent = True
    answer_ends_run = False
    stopped_by = CONFIRMED_CANCEL

    def __init__(self, clock: ManualClock, *answers: Any, seconds: float = 5.0) -> None:
        self.clock, self.seconds = clock, seconds
        self.answers = list(answers) or [Finished("done")]
        self.sent: list[str] = []
        self.polled: list[str] = []
        self.cancelled: list[str] = []
        self.on_start: Callable[[RunRequest], None] = lambda run: None

    def start(self, run: RunRequest, *, abort: Abort) -> Finished | Accepted:
        self.sent.append(run.job_id)
        if self.calls_on_sent:
            run.on_sent()
        self.clock.move(self.seconds)
        self.on_start(run)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, (Finished, Accepted))
        return answer

    def poll(self, run: RunRequest, remote_id: str, *, abort: Abort) -> Finished | StillRunning:
        self.polled.append(remote_id)
        return Finished("polled")

    def cancel(self, run: RunRequest, remote_id: str | None) -> bool:
        self.cancelled.append(run.job_id)
        return True

    def read_pushed(self, run: RunRequest, body: Mapping[str, Any]) -> Finished | StillRunning:
        return StillRunning()


class WatchedLeases:
    """The real leases. calls: every call as (name, positional, named); instead: what answers in the place of
    a method, called with the real one first."""

    def __init__(self, leases: Leases, generation_age: float | None) -> None:
        self.real = leases
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.instead: dict[str, Callable[..., Any]] = {"unsure_age_seconds": lambda real: generation_age}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.real, name)
        change = self.instead.get(name)

        def called(*given: Any, **named: Any) -> Any:
            self.calls.append((name, given, named))
            return change(method, *given, **named) if change else method(*given, **named)

        return called

    def named(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(given, named) for called, given, named in self.calls if called == name]


class HandProcess(WorkerProcess):
    """awaited: how often a commit was waited for. on_await, on_wait: what happens meanwhile."""

    awaited = 0
    on_await: Callable[[], None]
    on_wait: Callable[[float], None]

    def wait_for_commit(self, written: Future[Any]) -> None:
        self.awaited += 1
        self.on_await()
        assert written.done(), "no commit is due"

    def wait(self, run: AttemptRun, seconds: float) -> None:
        self.on_wait(seconds)


def run_claimed(
    worker: GpuWorker, time_slice: TimeSlice, claimed: Claimed
) -> tuple[Ready | None, WorkReport]:
    """Runs a claimed attempt; the slot's next one, and the report."""
    loop = SlotLoop(worker.loop_parts, time_slice)
    return loop.run(loop.prepare(claimed))


@dataclass
class Hands:
    """One worker with its leases, rows, clock and GPU."""

    worker: GpuWorker
    process: HandProcess
    writer: HandWriter
    clock: ManualClock
    gpu: Gpu
    leases: WatchedLeases
    sent_wakes: list[Any] = field(default_factory=list)
    loop: SlotLoop = field(init=False)

    def __post_init__(self) -> None:
        self.loop = SlotLoop(self.worker.loop_parts, GOES_ON)

    def submit(self, payload: Mapping[str, Any] | None = None, **values: Any) -> Job:
        job = make_job("m", at=self.clock.now(), payload=dict(payload or {}), **values)
        self.clock.move(0.001)  # the next one's place is behind it
        push_tickets("main", "m", [job.ticket], self.worker.ports)
        return job

    def waiting(self) -> int:
        """Tickets in the line."""
        return sum(self.leases.real.depth("m").waiting.values())

    def slot(self) -> str:
        """The state of the first one."""
        return self.leases.real.slots("gpu-1")[0].state


def by_hand(
    harness: WorkerHarness, *answers: Any, generation_age: float | None = OLD, wake: bool = True, **ports: Any
) -> Hands:
    """answers: of the GPU. wake: whether the broker takes wakes. ports: in place of the harness's."""
    clock, wakes = ManualClock(), []
    leases = WatchedLeases(harness.leases, generation_age)
    gpu = Gpu(clock, *answers)

    def send(asked: Any) -> int:
        wakes.extend(asked)
        return sum(one.count for one in asked) if wake else 0

    parts = replace(harness.ports, clock=clock, leases=lambda fleet: leases, send_wakes=send, **ports)
    process = HandProcess(parts.transport, name="w", runners=lambda spec: gpu)
    worker = GpuWorker(parts, process, writer=HandWriter)
    writer = worker.completion.writer
    assert isinstance(writer, HandWriter)
    process.on_await, process.on_wait = writer.commit, partial(_meanwhile, clock, writer)
    return Hands(worker, process, writer, clock, gpu, leases, wakes)


def _meanwhile(clock: ManualClock, writer: HandWriter, seconds: float) -> None:
    writer.commit()
    clock.move(max(seconds, 0.001))


def order_of(hands: Hands) -> list[str]:
    """Runs all that waits; the ids of the jobs as they went to the GPU."""
    while hands.waiting():
        hands.worker.work("m")
    return hands.gpu.sent
