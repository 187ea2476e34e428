"""The state that a worker's threads share: its runs in hand, its claimed and prefetched attempts, whether it
may claim, and for how long a thread keeps claiming.

Threads are started in `jobs.execution.gpu_worker`; the steps of a run are in `jobs.execution.slot_loop`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import structlog
from django.conf import settings
from django.db import connection

from foundation.log_lines import RateLimit
from gpus.errors import LeasingUnavailable
from gpus.leasing.contract import Leases
from gpus.protocol import Endpoint, Lease, LeaseRef, ModelSpec
from gpus.runners.base import Runner
from gpus.runners.registry import find_runner, runner_for
from jobs.execution.attempt_run import AttemptRun, Order
from jobs.execution.completion import Completion, RunEnd, StartCommit
from jobs.execution.group_commit import GroupCommitWriter, MakeWriter
from jobs.execution.presence import process_name
from jobs.execution.row_prefetch import RowPrefetch
from jobs.models import Attempt
from jobs.ports import Ports
from jobs.submission.fetched_urls import UrlFetcher
from jobs.transitions import StartOutcome

log = structlog.get_logger()

MAX_BACKLOG = 1000
"""Backpressure: with more queued writes than this, the worker claims no job."""
PAGE = 500
"""Attempts per statement of `SwitchReadiness`."""
MAX_UNCERTAIN = 200
"""Beyond this the oldest claim is dropped; its lease, if it was granted, expires."""
HELD_BACK_SECONDS = 3.0
"""A claim without an answer counts as refused once Redis has held no lease for it for this long: the request
may arrive late (a stalled server, a slow network)."""
SHORT_SLICES = 20
"""With short jobs and idle threads, a thread is kept for this many time slices."""
KEPT_SECONDS = 2.0
"""A prefetched job that has waited this long for the current run is given back."""
EMPTY_SECONDS = 0.1
"""Pause after a reservation found no job in the pool."""
_LOG_SECONDS_AT_ONCE = 4
"""Seconds of the rate of log lines that a burst may use."""


def _is_installed(spec: ModelSpec) -> bool:
    return find_runner(spec.model_type) is not None


class WorkerState:
    """State shared by a worker's threads.

    name: unique to this process; its leases are held under it.
    runners: makes the runner of a model; None: over the network.
    writer: makes the writer of the group commit.
    threads: the most that call `work`; 0: the setting's number.
    warm: returns the loaded models, whose jobs are claimed first; None: this process loads none. Must not
    wait.
    show_run: shows a long run in Flower. Must not wait or raise.
    """

    def __init__(
        self,
        ports: Ports,
        *,
        name: str = "",
        runners: Callable[[ModelSpec], Runner] | None = None,
        writer: MakeWriter = GroupCommitWriter,
        threads: int = 0,
        warm: Callable[[], Sequence[str] | None] | None = None,
        show_run: Callable[[Lease], None] = lambda lease: None,
    ) -> None:
        self.ports = ports
        self.threads = threads or settings.DISPATCHER.worker_threads
        self.name = name or process_name()
        self.runner_for = runners or (lambda spec: runner_for(spec, ports.transport))
        self.url_fetcher = UrlFetcher()
        self.may_run = (lambda spec: True) if runners else _is_installed
        """Returns True if this process has a runner for the model; a pinned worker brings its own."""
        self.completion = Completion(ports, name=self.name, on_lost=self._on_lost, writer=writer)
        self.switch_readiness = SwitchReadiness(ports, self.completion.keeper.refs)
        self.row_prefetch = RowPrefetch(ports)
        self.prefetched = PrefetchedJobs(settings.DISPATCHER.claim_ahead_seconds)
        self.uncertain_claims = UncertainClaims()
        per_second = settings.DISPATCHER.log_chars_per_second
        self.log_rate = RateLimit(per_second, _LOG_SECONDS_AT_ONCE * per_second)
        """Characters of log lines of all runs."""
        self.warm = warm or (lambda: None)
        self.show_run = show_run
        self._runs: dict[str, tuple[Lease, AttemptRun]] = {}
        self._lock = threading.Lock()
        self._draining = threading.Event()
        self._interrupted = threading.Event()
        self._paused_until = 0.0
        self._generation_seen: dict[str, tuple[float, bool]] = {}

    @property
    def is_draining(self) -> bool:
        """True once the worker claims no more."""
        return self._draining.is_set()

    def busy(self) -> int:
        """Return the number of runs in hand."""
        return len(self._runs)

    def runs(self) -> list[tuple[Lease, AttemptRun]]:
        """Return the runs in hand."""
        with self._lock:
            return list(self._runs.values())

    def may_claim(self) -> bool:
        """Return False while draining, paused, or unable to write ends."""
        return not (
            self._draining.is_set()
            or self.completion.writer.failing
            or self.completion.writer.backlog > MAX_BACKLOG
            or self.ports.clock.monotonic() < self._paused_until
        )

    def takes_wakes(self) -> bool:
        """Return False while another key layout is in use: a claim would be refused, and the wake lost."""
        return self.ports.layouts.is_layout_in_use()

    def pause_claims(self, seconds: float = 1.0) -> None:
        """Claim no job for this time."""
        self._paused_until = self.ports.clock.monotonic() + seconds

    def must_await_starts(self, fleet_name: str, leases: Leases) -> bool:
        """Return True if a start has to be committed before its request is sent: for one lease time after a
        new generation of the index, because the database may still get a run that the index does not know.
        Not if no job was held when the generation began."""
        now = self.ports.clock.monotonic()
        checked_at, young = self._generation_seen.get(fleet_name, (-1e9, True))
        if now - checked_at < 1.0:
            return young
        try:
            age = leases.unsure_age_seconds()
        except LeasingUnavailable:
            age = None
        young = age is None or age < settings.DISPATCHER.lease_seconds
        self._generation_seen[fleet_name] = (now, young)
        return young

    @contextmanager
    def running(self, lease: Lease, run: AttemptRun) -> Iterator[None]:
        """Count the run as in hand, so that orders reach it."""
        with self._lock:
            self._runs[lease.attempt_id] = (lease, run)
        for event, order in ((self._draining, Order.HAND_OVER), (self._interrupted, Order.INTERRUPT)):
            if event.is_set():
                run.order(order)
        try:
            yield
        finally:
            with self._lock:
                self._runs.pop(lease.attempt_id, None)

    def wait(self, run: AttemptRun, seconds: float) -> None:
        """Pause until the run is woken; close the thread's database connection before a long pause."""
        if seconds > 1.0:
            connection.close()
        run.woken.wait(seconds)

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

    def wait_for_commit(self, written: Future[Any]) -> None:
        """Wait for a commit; the keeper renews the lease meanwhile."""
        wait_for_futures([written])

    def order_all(self, order: Order) -> None:
        """Give the order to all runs in hand."""
        for _, run in self.runs():
            run.order(order)

    def _on_lost(self, ref: LeaseRef) -> None:
        with self._lock:
            if found := self._runs.get(ref.attempt_id):
                found[1].order(Order.LEASE_LOST)
        self.prefetched.mark_lost(ref)


class ClaimUnderWay:
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


class SwitchReadiness:
    """Checks, before an index switches to another key layout, that the database has every start of this
    worker.

    held: returns refs of the fleet's leases that this process renews, with followers and uncommitted ends.
    """

    def __init__(self, ports: Ports, held: Callable[[str], list[LeaseRef]]) -> None:
        self._ports, self._held = ports, held
        self.claim_under_way = ClaimUnderWay()

    def ready_switches(self) -> Mapping[str, str]:
        """Return, by fleet, the switches that may continue: the old index grants no lease any more, and all
        starts under its leases are committed. Raises DatabaseError."""
        return {
            fleet: switch
            for fleet, switch in self._ports.layouts.switches_away().items()
            if self._is_written(fleet)
        }

    def _is_written(self, fleet: str) -> bool:
        try:
            signs = self._ports.index_gate(fleet, self._ports.layouts.layout).activity()
        except LeasingUnavailable as error:
            log.info("index_switch_check_failed", fleet=fleet, error=str(error))
            return False
        # in this order: a closed index grants no claim, and an earlier claim counts until its lease is held
        if not signs.closed_by or self.claim_under_way.count:
            return False
        ids = [ref.attempt_id for ref in self._held(fleet)]
        pages = (ids[first : first + PAGE] for first in range(0, len(ids), PAGE))
        return sum(Attempt.objects.filter(id__in=page).count() for page in pages) == len(ids)


class UncertainClaims:
    """Claims whose answer was lost; Redis may have granted each. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fleets: dict[str, str] = {}  # by attempt, the oldest first
        self._not_granted_since: dict[str, float] = {}

    def add(self, attempt_id: str, fleet_name: str) -> None:
        """Note a claim whose answer was lost."""
        with self._lock:
            self._fleets[attempt_id] = fleet_name
            if len(self._fleets) > MAX_UNCERTAIN:
                self._forget(next(iter(self._fleets)))

    def by_fleet(self) -> dict[str, list[str]]:
        """Return the attempt ids of the claims, by fleet."""
        found: dict[str, list[str]] = {}
        with self._lock:
            for attempt_id, fleet_name in self._fleets.items():
                found.setdefault(fleet_name, []).append(attempt_id)
        return found

    def mark_not_granted(self, attempt_id: str, now: float) -> None:
        """Note that Redis holds no lease for this claim at `now` (monotonic seconds)."""
        with self._lock:
            if now - self._not_granted_since.setdefault(attempt_id, now) >= HELD_BACK_SECONDS:
                self._forget(attempt_id)

    def mark_returned(self, attempt_id: str) -> None:
        """Note that the claim's lease was found and returned."""
        with self._lock:
            self._forget(attempt_id)

    def _forget(self, attempt_id: str) -> None:
        self._fleets.pop(attempt_id, None)
        self._not_granted_since.pop(attempt_id, None)


class RunHook(Protocol):
    """The work of a slot's thread during a run (`jobs.execution.prefetch.Prefetch`)."""

    time_slice: TimeSlice | None

    def finish_deferred(self) -> None: ...

    def defer_end(self, ended: RunEnd) -> None: ...


@dataclass(frozen=True, slots=True)
class Ready:
    """A run that is made and not sent yet."""

    run: AttemptRun
    prefetch: RunHook

    def start_clock(self, time_slice: TimeSlice) -> None:
        """Start the run's clock; the request is sent next."""
        self.prefetch.time_slice = time_slice
        self.run.start_clock()


class Claimed(NamedTuple):
    """A lease with all that its run needs.

    job: the row as of `rows_to_run`; of an adopted attempt its `OF_JOB` fields, and None as payload.
    started: the commit of the start; None for an adopted attempt.
    remote_id, ran_seconds: the server's id of an adopted attempt's run, and how long it ran before.
    logs_seen: position in its server's log, as in `RunRequest`.
    must_wait: the request is sent only after the start is committed.
    ready: the run of a prefetched attempt, created during the slot's current run.
    """

    fleet: str
    leases: Leases
    lease: Lease
    job: Mapping[str, Any]
    spec: ModelSpec
    endpoint: Endpoint
    started: StartCommit | None
    remote_id: str | None = None
    ran_seconds: float = 0.0
    logs_seen: int = 0
    must_wait: bool = False
    ready: Ready | None = None

    @property
    def refused(self) -> StartOutcome | None:
        """Why the database refused the start; None if it accepted it or has not answered yet."""
        return None if self.started is None else self.started.refused


def random_short_slices() -> float:
    """Return `SHORT_SLICES` with jitter, so that the slices of threads that began together end apart."""
    return SHORT_SLICES * random.uniform(0.75, 1.25)


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """How long a Celery task keeps its thread.

    A long run is a task of its own, which Flower shows. Short runs share a task, because a message through
    the broker costs more than such a run; the slice ends when other wakes may wait for the thread, and at
    the latest after `short_slices` times `seconds`.

    seconds: the least time that a thread is kept; a job that runs longer is not short. began: monotonic.
    is_wanted: returns True if other wakes may wait for the thread.
    """

    seconds: float
    began: float
    is_wanted: Callable[[], bool] = lambda: True
    short_slices: float = SHORT_SLICES

    def is_over(self, now: float, ran_seconds: float) -> bool:
        """Return True if the thread is handed back after a job that ran for `ran_seconds`. now: monotonic."""
        worked = now - self.began
        if worked < self.seconds:
            return False
        return ran_seconds >= self.seconds or worked >= self.seconds * self.short_slices or self.is_wanted()


@dataclass(slots=True)
class _Prefetched:
    claimed: Claimed
    since: float


class PrefetchedJobs:
    """The prefetched jobs of this worker's slots, by the attempt that runs there now (the holder).
    Thread-safe.

    A job is removed by the thread of its slot, which begins it, or by the watcher, which gives it back when
    the current run takes longer than expected: another slot may be free sooner.

    short_seconds: no job is prefetched behind a run that is expected to take longer, because a prefetched job
    is bound to one slot, and jobs that arrive later can't overtake it.
    """

    def __init__(self, short_seconds: float) -> None:
        self.short_seconds, self.kept_seconds = short_seconds, KEPT_SECONDS
        self._lock = threading.Lock()
        self._prefetched: dict[str, _Prefetched] = {}
        self._unanswered: dict[str, str] = {}
        self._empty_until: dict[str, float] = {}
        self._lost: list[Claimed] = []

    def put(self, holder_id: str, claimed: Claimed, now: float) -> None:
        """Keep a prefetched job until `take` or `overdue`. now: monotonic."""
        with self._lock:
            self._prefetched[holder_id] = _Prefetched(claimed, now)

    def take(self, holder_id: str) -> tuple[Claimed | None, str | None]:
        """Remove and return the ended holder's prefetched job, and the attempt id of its reservation whose
        answer was lost; None for what it has not."""
        with self._lock:
            found = self._prefetched.pop(holder_id, None)
            return found.claimed if found else None, self._unanswered.pop(holder_id, None)

    def overdue(self, now: float) -> list[Claimed]:
        """Remove and return the jobs that waited too long or whose lease was lost. now: monotonic."""
        with self._lock:
            late = [
                holder for holder, one in self._prefetched.items() if now - one.since >= self.kept_seconds
            ]
            found = [*self._lost, *(self._prefetched.pop(holder).claimed for holder in late)]
            self._lost.clear()
            return found

    def mark_lost(self, ref: LeaseRef) -> None:
        """Note that another worker holds this lease: its job is not begun."""
        with self._lock:
            for holder, one in list(self._prefetched.items()):
                if one.claimed.lease.ref == ref:
                    self._lost.append(self._prefetched.pop(holder).claimed)

    def leases(self) -> list[Lease]:
        """Return the leases of all prefetched jobs."""
        with self._lock:
            return [one.claimed.lease for one in self._prefetched.values()]

    def cancel(self, job_ids: Collection[str]) -> None:
        """Cancel those of these jobs that are prefetched: each ends when its slot is free, and is not
        sent."""
        with self._lock:
            for one in self._prefetched.values():
                if one.claimed.ready is not None and one.claimed.lease.job_id in job_ids:
                    one.claimed.ready.run.order(Order.CANCEL)

    def may_reserve(self, pool: str, now: float) -> bool:
        """Return False shortly after the pool had no job to prefetch. now: monotonic."""
        with self._lock:
            return now >= self._empty_until.get(pool, now)

    def note_empty(self, pool: str, now: float) -> None:
        """Note that the pool had no job to prefetch. now: monotonic."""
        with self._lock:
            self._empty_until[pool] = now + EMPTY_SECONDS

    def note_unanswered(self, holder_id: str, attempt_id: str) -> None:
        """Note that a reservation under this attempt id got no answer; Redis may have granted it."""
        with self._lock:
            self._unanswered[holder_id] = attempt_id
