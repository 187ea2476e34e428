"""The life cycle of a GPU worker process: its parts, its threads, and how it stops.

Celery tasks call `GpuWorker.work` from many threads. The watcher is one thread that checks every second, and
at once when one of its jobs is announced, for external changes (`jobs.execution.external_changes`). It also
retries requests that Redis did not answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import structlog
from django.conf import settings
from django.db import DatabaseError, connection

from gpus.protocol import REGISTRY_CHANGED, LeaseRef
from jobs.events.announce import Listener, SelfNotifications
from jobs.execution.attempt_run import Order
from jobs.execution.claiming import Claims
from jobs.execution.completion import Completion
from jobs.execution.external_changes import apply_external_changes
from jobs.execution.group_commit import GroupCommitWriter, MakeWriter
from jobs.execution.prefetch import PrefetchedRuns, SlotPrefetch, return_overdue
from jobs.execution.presence import Presence
from jobs.execution.row_prefetch import RowPrefetch
from jobs.execution.run_factory import RunFactory
from jobs.execution.slot_loop import LoopParts, SlotLoop, TimeSlice, WorkReport, random_short_slices
from jobs.execution.switch_readiness import SwitchReadiness
from jobs.execution.worker_heartbeats import WorkerHeartbeats
from jobs.execution.worker_state import ClaimGate, RunsInHand, WorkerProcess
from jobs.ports import Ports

log = structlog.get_logger()

WATCH_SECONDS = 1.0


class GpuWorker:
    """The life cycle of a worker process.

    process: what it offers to its runs; None: the runners over the network.
    writer: makes the writer of the group commit.
    threads: the most that call `work`; 0: the setting's number.
    self_notifications: counts the announcements that `ports.announce` sends.
    listen_url: Redis whose announcements end the watcher's pause at once; empty: it polls every second only.
    make_presence: makes the worker's sign of life in the database; None: it writes none.
    on_registry: called when servers or models were registered. Must not wait or raise.
    """

    def __init__(
        self,
        ports: Ports,
        process: WorkerProcess | None = None,
        *,
        writer: MakeWriter = GroupCommitWriter,
        threads: int = 0,
        self_notifications: SelfNotifications | None = None,
        listen_url: str = "",
        make_presence: Callable[[GpuWorker], Presence] | None = None,
        on_registry: Callable[[], None] = lambda: None,
    ) -> None:
        process = process or WorkerProcess(ports.transport)
        self.ports, self.name = ports, process.name
        self.threads = threads or settings.DISPATCHER.worker_threads
        self.runs = RunsInHand()
        self.completion = Completion(ports, name=self.name, on_lost=self._on_lost, writer=writer)
        self.gate = ClaimGate(ports.clock, self.completion.writer)
        self.row_prefetch = RowPrefetch(ports)
        self.claims = Claims(ports, process, self.gate, self.completion, self.row_prefetch, runs=self.runs)
        self.prefetched = PrefetchedRuns()
        self.prefetch = SlotPrefetch(
            ports, process, self.gate, self.claims, self.completion, prefetched=self.prefetched
        )
        self.loop_parts = LoopParts(
            ports,
            process,
            self.gate,
            self.claims,
            RunFactory(ports, process, self.completion).make,
            self.runs,
            self.prefetch,
            self.row_prefetch,
            self.completion,
        )
        self.switch_readiness = SwitchReadiness(ports, self.completion.keeper.refs, self.gate.under_way)
        self.nudged = threading.Event()
        """Set once another process has announced a change of one of this worker's jobs."""
        self._notifications = self_notifications or SelfNotifications()
        self._on_registry = on_registry
        self.heartbeats = WorkerHeartbeats(ports.clock, self.completion, self.claims.uncertain)
        self.presence = make_presence(self) if make_presence is not None else None
        self._listener = Listener(listen_url, self.nudge) if listen_url else None
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._working = 0
        self._watcher = threading.Thread(target=self._watch, name="run-watcher", daemon=True)
        self._heart = threading.Thread(target=self._write_heartbeats, name="worker-heartbeats", daemon=True)

    def start(self) -> None:
        """Start all threads."""
        if self.presence is not None:
            self.presence.start()
        self.completion.start()
        self._watcher.start()
        self._heart.start()
        self.row_prefetch.start()
        if self._listener is not None:
            self._listener.start()

    def takes_wakes(self) -> bool:
        """Return False while another key layout is in use: a claim would be refused, and the wake lost."""
        return self.ports.layouts.is_layout_in_use()

    def work(self, pool: str, host: str | None = None) -> list[WorkReport]:
        """Claim and run until no job is left or the time slice is over: the work of one Celery task."""
        with self._lock:
            self._working += 1
        try:
            seconds = settings.DISPATCHER.hand_back_seconds
            time_slice = TimeSlice(
                seconds, self.ports.clock.monotonic(), self._is_crowded, random_short_slices()
            )
            return SlotLoop(self.loop_parts, time_slice).work(pool, host)
        finally:
            with self._lock:
                self._working -= 1

    def _is_crowded(self) -> bool:
        """Return True if every thread is busy: wakes, perhaps of other pools, wait for one."""
        return self._working >= self.threads

    def busy(self) -> int:
        """Return the number of runs in hand."""
        return len(self.runs)

    def drain(self) -> None:
        """Claim no more; hand over polled runs, and let the others finish."""
        self.gate.close()
        self.runs.order_all(Order.HAND_OVER)

    def interrupt(self) -> None:
        """The grace period is over: stop the runs at their GPUs and queue their jobs again, at no cost."""
        self.drain()
        self.runs.order_all(Order.INTERRUPT)

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """Write the queued rows, then stop all threads."""
        self.drain()
        self._stopped.set()
        self.nudged.set()
        if self._listener is not None:
            self._listener.stop()
        self.row_prefetch.stop()
        self.heartbeats.end()
        self.completion.stop(timeout_seconds)
        if self.presence is not None:
            self.presence.stop()

    def nudge(self, job_ids: Sequence[str]) -> None:
        """Watch now if another process announced a change of one of this worker's jobs (the listener calls
        it)."""
        if REGISTRY_CHANGED in job_ids:
            self._on_registry()
        changed = self._notifications.from_others(job_ids)
        ours = [*(lease for lease, _ in self.runs.all()), *self.prefetched.leases()]
        if any(lease.job_id in changed for lease in ours):
            self.nudged.set()

    def watch(self) -> None:
        """Take one step of the watcher (the simulator calls it, too): retry what failed, return what waited
        too long, and apply external changes."""
        self.heartbeats.write_if_due()
        self.completion.retry_releases()
        self.claims.return_uncertain()
        return_overdue(self.prefetched, self.completion, self.ports)
        self.row_prefetch.drop_stale()
        apply_external_changes(self.ports, self.runs, self.prefetched)

    def _watch(self) -> None:
        while not self._stopped.is_set():
            self.nudged.wait(WATCH_SECONDS)
            self.nudged.clear()
            try:
                self.watch()
            except DatabaseError as error:
                log.warning("watch_without_database", error=str(error).strip())
                connection.close()
            except Exception:
                log.exception("watch_failed")
        connection.close()

    def _write_heartbeats(self) -> None:
        """Write heartbeats in a thread of their own: the watcher's checks are slow while Redis does not
        answer."""
        while not self._stopped.wait(WATCH_SECONDS):
            try:
                self.heartbeats.write_if_due()
            except Exception:
                log.exception("heartbeat_failed")

    def _on_lost(self, ref: LeaseRef) -> None:
        self.runs.order(ref.attempt_id, Order.LEASE_LOST)
        self.prefetched.mark_lost(ref)
