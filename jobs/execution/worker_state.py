"""What the threads of a worker share: the services of its process, the gate of its claims, its runs in hand.

`jobs.execution.gpu_worker` makes these objects, and the steps of `jobs.execution.slot_loop` use them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from contextlib import contextmanager
from typing import Any

import structlog
from django.db import connection

from gpus.protocol import Clock, Lease, ModelSpec
from gpus.runners.base import Runner, Transport
from gpus.runners.registry import find_runner, runner_for
from jobs.execution.attempt_run import AttemptRun, Order
from jobs.execution.group_commit import Writer
from jobs.execution.presence import process_name

log = structlog.get_logger()

MAX_BACKLOG = 1000
"""Backpressure: with more queued writes than this, the worker claims no job."""


def _is_installed(spec: ModelSpec) -> bool:
    return find_runner(spec.model_type) is not None


class WorkerProcess:
    """What a worker's process offers to its runs: a name, runners, loaded models, and ways to wait.

    transport: of the runners over the network.
    name: unique to this process; its leases are held under it.
    runners: makes the runner of a model; None: over the network.
    warm: returns the loaded models, whose jobs are claimed first; None: this process loads none. Must not
    wait.
    show_run: shows a long run in Flower. Must not wait or raise.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        name: str = "",
        runners: Callable[[ModelSpec], Runner] | None = None,
        warm: Callable[[], Sequence[str] | None] | None = None,
        show_run: Callable[[Lease], None] = lambda lease: None,
    ) -> None:
        self.name = name or process_name()
        self.runner_for = runners or (lambda spec: runner_for(spec, transport))
        self.may_run: Callable[[ModelSpec], bool] = (lambda spec: True) if runners else _is_installed
        """Returns True if this process has a runner for the model; a pinned worker brings its own."""
        self.warm = warm or (lambda: None)
        self.show_run = show_run

    def new_event(self) -> threading.Event:
        """Return the event that wakes a waiting run."""
        return threading.Event()

    def wait(self, run: AttemptRun, seconds: float) -> None:
        """Pause until the run is woken; close the thread's database connection before a long pause."""
        if seconds > 1.0:
            connection.close()
        run.woken.wait(seconds)

    def wait_for_commit(self, written: Future[Any]) -> None:
        """Wait for a commit; the keeper renews the lease meanwhile."""
        wait_for_futures([written])

    def in_background(self, work: Callable[[], None]) -> None:
        """Call the function in a new thread, and close that thread's database connection. Raises RuntimeError
        if no thread can be started."""

        def do() -> None:
            try:
                work()
            except Exception:
                log.exception("background_work_failed")
            finally:
                connection.close()

        threading.Thread(target=do, name="beside-a-run", daemon=True).start()


class ClaimGate:
    """Whether the worker may claim, and how many claims are under way. Thread-safe.

    writer: of the ends; while it fails or is far behind, the gate is shut.
    """

    def __init__(self, clock: Clock, writer: Writer) -> None:
        self._clock, self._writer = clock, writer
        self._closed = threading.Event()
        self._paused_until = 0.0
        self.under_way = ClaimsUnderWay()

    @property
    def is_closed(self) -> bool:
        """True once the worker claims no more."""
        return self._closed.is_set()

    def may_claim(self) -> bool:
        """Return False while closed, paused, or unable to write ends."""
        return not (
            self._closed.is_set()
            or self._writer.failing
            or self._writer.backlog > MAX_BACKLOG
            or self._clock.monotonic() < self._paused_until
        )

    def pause(self, seconds: float = 1.0) -> None:
        """Claim no job for this time."""
        self._paused_until = self._clock.monotonic() + seconds

    def close(self) -> None:
        """Claim no more."""
        self._closed.set()


class ClaimsUnderWay:
    """Counts the claims under way: a claim ends when its lease is held or given back."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.count -= 1


class RunsInHand:
    """The runs that the worker drives now. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, tuple[Lease, AttemptRun]] = {}
        self._standing: list[Order] = []

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, attempt_id: str) -> bool:
        return attempt_id in self._runs

    def all(self) -> list[tuple[Lease, AttemptRun]]:
        """Return the runs with their leases."""
        with self._lock:
            return list(self._runs.values())

    @contextmanager
    def holding(self, lease: Lease, run: AttemptRun) -> Iterator[None]:
        """Count the run as in hand, so that orders reach it; standing orders do at once."""
        with self._lock:
            self._runs[lease.attempt_id] = (lease, run)
            standing = tuple(self._standing)
        for order in standing:
            run.order(order)
        try:
            yield
        finally:
            with self._lock:
                self._runs.pop(lease.attempt_id, None)

    def order(self, attempt_id: str, order: Order) -> None:
        """Give the order to this attempt's run, if it is in hand."""
        with self._lock:
            if found := self._runs.get(attempt_id):
                found[1].order(order)

    def order_all(self, order: Order) -> None:
        """Give the order to all runs in hand and to all that begin later."""
        with self._lock:
            if order not in self._standing:
                self._standing.append(order)
        for _, run in self.all():
            run.order(order)
