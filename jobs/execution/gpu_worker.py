"""The life cycle of a GPU worker process: its threads, its watcher, and how it stops.

Celery tasks call `GpuWorker.work` from many threads. The watcher is one thread that checks every second, and
at once when one of its jobs is announced, for external changes: a cancel, a pushed result, a deadline, a
server that an operator switched off, an attempt that a sweep ended. It also retries requests that Redis did
not answer.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import redis
import structlog
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.models import QuerySet
from django.db.models import Value as Constant

from foundation.database import statements
from gpus.leasing.connect import connect
from gpus.models import Process, Server
from gpus.protocol import REGISTRY_CHANGED, DesiredState, Lease
from jobs.events.announce import SILENCE_SECONDS, channel, read_announcement
from jobs.execution import claiming, prefetch
from jobs.execution.attempt_run import AttemptRun, Order
from jobs.execution.presence import Presence
from jobs.execution.slot_loop import SlotLoop, WorkReport
from jobs.execution.worker_heartbeats import WorkerHeartbeats
from jobs.execution.worker_state import TimeSlice, WorkerState, random_short_slices
from jobs.models import Attempt, Job, PushedResult
from jobs.ports import Ports

log = structlog.get_logger()

WATCH_SECONDS = 1.0
MAX_UNDER_WAY = 10_000
"""Own announcements that have not come back yet; beyond this, they never will (Redis is away)."""
_CANCELLED, _PUSHED, _OFF, _OVER = "cancelled", "pushed", "off", "over"
LISTEN_AGAIN_SECONDS = 2.0
LISTEN_SLICE_SECONDS = 1.0


class GpuWorker(WorkerState):
    """The life cycle of a worker process.

    self_notifications: counts the announcements that `ports.announce` sends.
    listen_url: Redis whose announcements end the watcher's pause at once; empty: it polls every second only.
    make_presence: makes the worker's sign of life in the database; None: it writes none.
    on_registry: called when servers or models were registered. Must not wait or raise.
    options: as for `WorkerState`.
    """

    def __init__(
        self,
        ports: Ports,
        *,
        self_notifications: SelfNotifications | None = None,
        listen_url: str = "",
        make_presence: Callable[[WorkerState], Presence] | None = None,
        on_registry: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        super().__init__(ports, **options)
        self._listener = Listener(listen_url, self.nudge) if listen_url else None
        self.presence = make_presence(self) if make_presence is not None else None
        self.self_notifications = self_notifications or SelfNotifications()
        self.on_registry = on_registry
        self._stopped = threading.Event()
        self._nudged = threading.Event()
        self._working = 0
        self.heartbeats = WorkerHeartbeats(self)
        self._watcher = threading.Thread(target=self._watch, name="run-watcher", daemon=True)
        self._heart = threading.Thread(target=self._write_heartbeats, name="worker-heartbeats", daemon=True)

    # -- life cycle ------------------------------------------------------------------------------------

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

    def work(self, pool: str, host: str | None = None) -> list[WorkReport]:
        """Claim and run until no job is left or the time slice is over: the work of one Celery task."""
        with self._lock:
            self._working += 1
        try:
            seconds = settings.DISPATCHER.hand_back_seconds
            time_slice = TimeSlice(
                seconds, self.ports.clock.monotonic(), self._is_crowded, random_short_slices()
            )
            return SlotLoop(self, time_slice).work(pool, host)
        finally:
            with self._lock:
                self._working -= 1

    def drain(self) -> None:
        """Claim no more; hand over polled runs, and let the others finish."""
        self._draining.set()
        self.order_all(Order.HAND_OVER)

    def interrupt(self) -> None:
        """The grace period is over: stop the runs at their GPUs and queue their jobs again, at no cost."""
        self._interrupted.set()
        self.drain()
        self.order_all(Order.INTERRUPT)

    def stop(self, timeout_seconds: float = 10.0) -> None:
        """Write the queued rows, then stop all threads."""
        self._draining.set()
        self._stopped.set()
        self._nudged.set()
        if self._listener is not None:
            self._listener.stop()
        self.row_prefetch.stop()
        self.heartbeats.end()
        self.completion.stop(timeout_seconds)
        if self.presence is not None:
            self.presence.stop()

    def _is_crowded(self) -> bool:
        """Return True if every thread is busy: wakes, perhaps of other pools, wait for one."""
        return self._working >= self.threads

    # -- the watcher ------------------------------------------------------------------------------------

    def nudge(self, job_ids: Sequence[str]) -> None:
        """Check now if another process announced a change of one of this worker's jobs (the listener calls
        it)."""
        if REGISTRY_CHANGED in job_ids:
            self.on_registry()
        changed = self.self_notifications.from_others(job_ids)
        ours = [*(lease for lease, _ in self.runs()), *self.prefetched.leases()]
        if any(lease.job_id in changed for lease in ours):
            self._nudged.set()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            self._nudged.wait(WATCH_SECONDS)
            self._nudged.clear()
            try:
                self.check_external_changes()
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

    def check_external_changes(self) -> None:
        """Check all runs in hand and retry what failed: one step of the watcher (the simulator calls it,
        too)."""
        self.heartbeats.write_if_due()
        self.completion.retry_releases()
        claiming.return_uncertain_claims(self)
        prefetch.return_overdue_prefetched(self)
        self.row_prefetch.drop_stale()
        runs = self.runs()
        for _, run in runs:
            run.check_time()
        changed = changes_for([*(lease for lease, _ in runs), *self.prefetched.leases()])
        self.prefetched.cancel(changed.cancelled)
        for lease, run in runs:
            if lease.job_id in changed.cancelled:
                run.order(Order.CANCEL)
            if lease.attempt_id in changed.pushed:
                run.nudge()
            if lease.attempt_id in changed.over:
                run.order(Order.ENDED_ELSEWHERE)
        if changed.off:
            # before the index is updated, a claim must not begin a run that would be stopped at once
            self.ports.registry.clear()
        interrupt_switched_off(runs, changed.off)


def interrupt_switched_off(runs: Iterable[tuple[Lease, AttemptRun]], off: Collection[str]) -> None:
    """Stop the runs on servers that an operator switched off; their jobs are queued again, at no cost.

    Only the worker that drives a run may cancel it: one that was handed over, or whose worker died, is
    adopted first. The index grants no lease on such a server. off: names of servers.
    """
    for lease, run in runs:
        if lease.server in off:
            run.order(Order.INTERRUPT)


def create_worker(
    ports: Ports,
    *,
    name: str = "",
    queues: Callable[[], Collection[str]] = tuple,
    on_registry: Callable[[], None] = lambda: None,
    **options: Any,
) -> GpuWorker:
    """Make the worker of a process, connected to Redis and the database.

    queues: returns the queues that the process consumes; shown to operators. on_registry: as for `GpuWorker`.
    options: as for `WorkerState`.
    """
    ours = SelfNotifications()
    ports = replace(ports, announce=ours.tracking(ports.announce))

    def presence(worker: WorkerState) -> Presence:
        ready = worker.switch_readiness.ready_switches
        return Presence(ports, Process.Kind.GPU, name=worker.name, queues=queues, ready=ready)

    return GpuWorker(
        ports,
        self_notifications=ours,
        listen_url=settings.REDIS_URL,
        make_presence=presence,
        on_registry=on_registry,
        name=name,
        **options,
    )


class SelfNotifications:
    """Distinguishes a worker's own announcements, which come back by publish/subscribe, from those of others.

    A hint only: after a lost announcement, the next one of that job by another process counts as own; the
    worker polls every second anyway. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()

    def tracking(self, announce: Callable[[Sequence[str]], None]) -> Callable[[Sequence[str]], None]:
        """Return `announce`, wrapped so that its announcements count as own."""

        def announce_and_count(job_ids: Sequence[str]) -> None:
            with self._lock:
                if len(self._under_way) > MAX_UNDER_WAY:  # Redis is away: none comes back
                    self._under_way.clear()
                self._under_way.update(job_ids)
            announce(job_ids)

        return announce_and_count

    def from_others(self, job_ids: Sequence[str]) -> set[str]:
        """Return the received job ids that other processes announced."""
        others = set()
        with self._lock:
            for job_id in job_ids:
                count = self._under_way.pop(job_id, 0)
                if count == 0:
                    others.add(job_id)
                elif count > 1:
                    self._under_way[job_id] = count - 1
        return others


@dataclass(frozen=True, slots=True)
class Changes:
    """External changes that concern a worker's runs.

    cancelled: ids of jobs whose cancel was requested. pushed: ids of attempts with a pushed result.
    off: names of servers that are switched off. over: ids of attempts whose end is committed.
    """

    cancelled: frozenset[str]
    pushed: frozenset[str]
    off: frozenset[str]
    over: frozenset[str]


def changes_for(leases: Iterable[Lease]) -> Changes:
    """Read the changes that concern the runs under these leases, in one statement."""
    runs = list(leases)
    found: dict[str, list[str]] = defaultdict(list)
    for kind, name in _changed(
        [lease.job_id for lease in runs],
        [lease.attempt_id for lease in runs],
        sorted({lease.server for lease in runs}),
    ):
        found[kind].append(name)
    return Changes(*(frozenset(found[kind]) for kind in (_CANCELLED, _PUSHED, _OFF, _OVER)))


def _rows(jobs: list[str], attempts: list[str], servers: list[str]) -> QuerySet[Any, Any]:
    cancelled = Job.objects.filter(id__in=jobs, cancel_requested_at__isnull=False)
    pushed = PushedResult.objects.filter(attempt_id__in=attempts)
    off = Server.objects.filter(name__in=servers, desired=DesiredState.OFF.value)
    over = Attempt.objects.filter(id__in=attempts).exclude(state__in=Attempt.LIVE)
    others = _as(_PUSHED, pushed, "attempt_id"), _as(_OFF, off, "name"), _as(_OVER, over, "id")
    return _as(_CANCELLED, cancelled, "id").union(*others, all=True)


def _as(kind: str, rows: QuerySet[Any, Any], name: str) -> QuerySet[Any, Any]:
    named: QuerySet[Any, Any] = rows.order_by().annotate(kind=Constant(kind)).values_list("kind", name)
    return named


_changed = statements.ReadAmong((Job, "id"), (PushedResult, "attempt_id"), (Server, "name"), rows=_rows)


class Listener:
    """Subscribes to announcements of jobs in Redis, in a thread of its own.

    on_jobs: called with the ids of announced jobs. While Redis is away a cancel takes up to a second longer.
    """

    def __init__(self, url: str, on_jobs: Callable[[Sequence[str]], None]) -> None:
        self._url = url
        self._on_jobs = on_jobs
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except (redis.RedisError, OSError) as error:
                log.warning("listener_lost_redis", error=str(error))
                self._stopping.wait(LISTEN_AGAIN_SECONDS)

    def _listen(self) -> None:
        client: Any = connect(self._url)
        with client.pubsub(ignore_subscribe_messages=True) as subscription:
            subscription.subscribe(channel())
            received_at, pinged = time.monotonic(), False
            while not self._stopping.is_set():
                # not `get_message`, which drops the answer to a PING under RESP 3
                message = subscription.parse_response(block=False, timeout=LISTEN_SLICE_SECONDS)
                if message is not None:
                    received_at, pinged = time.monotonic(), False
                    if message[0] == "message":
                        self._on_jobs(read_announcement(message[2]))
                elif time.monotonic() - received_at > SILENCE_SECONDS:
                    if pinged:
                        raise redis.TimeoutError("the subscription's server does not answer")
                    subscription.ping()
                    received_at, pinged = time.monotonic(), True
