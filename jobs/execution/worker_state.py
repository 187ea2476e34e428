"""The state that a worker's threads share: its name, its runs, claimed and prefetched attempts on their way
to the GPU, whether it may claim, and for how long a thread keeps claiming.

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
from jobs.transitions import StartOutcome

log = structlog.get_logger()

MAX_BACKLOG = 1000
PAGE = 500
"""Attempts per statement of `SwitchReadiness`."""
MOST_UNCERTAIN = 200
"""Beyond this the oldest claim is dropped; its lease, if it was granted, expires."""
HELD_BACK_SECONDS = 3.0
"""A request may reach Redis late (a stalled server, a slow network): a claim counts as refused once it was
seen ungranted for this long."""
SHORT_SLICES = 20
"""With short jobs and idle threads, a thread is kept for this many time slices."""
KEPT_SECONDS = 2.0
"""How long a prefetched job waits for the current run before it is given back."""
EMPTY_SECONDS = 0.1
"""How long a pool without a job to prefetch is not asked again."""


def _is_installed(spec: ModelSpec) -> bool:
    return find_runner(spec.model_type) is not None


class WorkerState:
    """What a worker's threads share.

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
        warm: Callable[[], Sequence[str] | None] = lambda: None,
        show_run: Callable[[Lease], None] = lambda lease: None,
    ) -> None:
        self.ports = ports
        self.threads = threads or settings.DISPATCHER.worker_threads
        self.name = name or process_name()
        self.runner_for = runners or (lambda spec: runner_for(spec, ports.transport))
        self.may_run = (lambda spec: True) if runners else _is_installed
        """Whether this process has a runner for the model; a pinned worker brings its own."""
        self.completion = Completion(ports, name=self.name, on_lost=self._on_lost, writer=writer)
        self.switch_readiness = SwitchReadiness(ports, self.completion.keeper.refs)
        self.row_prefetch = RowPrefetch(ports)
        self.prefetched = PrefetchedJobs(settings.DISPATCHER.claim_ahead_seconds)
        self.uncertain_claims = UncertainClaims()
        self.warm, self.show_run = warm, show_run
        self._runs: dict[str, tuple[Lease, AttemptRun]] = {}
        self._lock = threading.Lock()
        self._draining = threading.Event()
        self._interrupted = threading.Event()
        self._paused_until = 0.0
        self._generation_seen: dict[str, tuple[float, bool]] = {}

    @property
    def is_draining(self) -> bool:
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
        """Return False while another key layout is in use: this process would waste the wake."""
        return self.ports.layouts.leads()

    def pause_claims(self, seconds: float = 1.0) -> None:
        self._paused_until = self.ports.clock.monotonic() + seconds

    def must_await_starts(self, fleet_name: str, leases: Leases) -> bool:
        """For one lease time after a new generation, starts are durable before anything is sent: a run that
        the index does not know of may still be written. Not where no job was held when it was made."""
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
        """A pause of a run; a long one gives its database connection back first."""
        if seconds > 1.0:
            connection.close()
        run.woken.wait(seconds)

    def in_background(self, work: Callable[[], None]) -> None:
        """In a thread of its own, which gives its database connection back. Raises RuntimeError if none can
        be started."""

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
        for _, run in self.runs():
            run.order(order)

    def _on_lost(self, ref: LeaseRef) -> None:
        with self._lock:
            if found := self._runs.get(ref.attempt_id):
                found[1].order(Order.LEASE_LOST)
        self.prefetched.mark_lost(ref)


class ClaimUnderWay:
    """Encloses each claim, until its lease is held or given back. count: of threads in it."""

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
    """Checks that the database has every start under this worker's leases, before an index switch to another
    layout. held: refs of the fleet's leases that this process renews, followers and uncommitted ends too."""

    def __init__(self, ports: Ports, held: Callable[[str], list[LeaseRef]]) -> None:
        self._ports, self._held = ports, held
        self.claim_under_way = ClaimUnderWay()

    def ready_switches(self) -> Mapping[str, str]:
        """Return the switches that may go on, by fleet: their index grants nothing any more, and every start
        under its leases is written. Raises DatabaseError."""
        return {
            fleet: switch for fleet, switch in self._ports.layouts.left().items() if self._is_written(fleet)
        }

    def _is_written(self, fleet: str) -> bool:
        try:
            signs = self._ports.index_gate(fleet, self._ports.layouts.layout).signs()
        except LeasingUnavailable as error:
            log.info("switch_not_answered", fleet=fleet, error=str(error))
            return False
        # in this order: a closed index grants no claim, and an earlier claim is counted until its lease is
        # held
        if not signs.closed_by or self.claim_under_way.count:
            return False
        ids = [ref.attempt_id for ref in self._held(fleet)]
        pages = (ids[first : first + PAGE] for first in range(0, len(ids), PAGE))
        return sum(Attempt.objects.filter(id__in=page).count() for page in pages) == len(ids)


class UncertainClaims:
    """Claims whose answer was lost: each may have been granted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fleets: dict[str, str] = {}  # by attempt, the oldest first
        self._not_granted_since: dict[str, float] = {}

    def add(self, attempt_id: str, fleet_name: str) -> None:
        with self._lock:
            self._fleets[attempt_id] = fleet_name
            if len(self._fleets) > MOST_UNCERTAIN:
                self._forget(next(iter(self._fleets)))

    def by_fleet(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        with self._lock:
            for attempt_id, fleet_name in self._fleets.items():
                found.setdefault(fleet_name, []).append(attempt_id)
        return found

    def mark_not_granted(self, attempt_id: str, now: float) -> None:
        """Redis holds no lease for this claim at `now` (monotonic seconds)."""
        with self._lock:
            if now - self._not_granted_since.setdefault(attempt_id, now) >= HELD_BACK_SECONDS:
                self._forget(attempt_id)

    def mark_returned(self, attempt_id: str) -> None:
        with self._lock:
            self._forget(attempt_id)

    def _forget(self, attempt_id: str) -> None:
        self._fleets.pop(attempt_id, None)
        self._not_granted_since.pop(attempt_id, None)


class RunHook(Protocol):
    """What the slot's thread does during a run (`jobs.execution.prefetch.Prefetch`)."""

    time_slice: TimeSlice | None

    def finish_deferred(self) -> None: ...

    def defer_end(self, ended: RunEnd) -> None: ...


@dataclass(frozen=True, slots=True)
class Ready:
    """A run, made and not sent yet."""

    run: AttemptRun
    prefetch: RunHook

    def begin(self, time_slice: TimeSlice) -> None:
        """Start the run's clock."""
        self.prefetch.time_slice = time_slice
        self.run.begin()


class Claimed(NamedTuple):
    """A lease with all that its run needs. started: the start's commit; None for an adopted attempt.

    job: the row's `OF_JOB`, and its payload (None when adopted).
    ran_seconds: for how long an adopted attempt ran before.
    must_wait: nothing is sent before the start is durable.
    ready: of a prefetched attempt: its run, made while the slot's current run goes on.
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
    must_wait: bool = False
    ready: Ready | None = None

    @property
    def refused(self) -> StartOutcome | None:
        """Why the database did not accept the start, as far as it has answered yet."""
        return None if self.started is None else self.started.refused


def random_short_slices() -> float:
    """Jitter, so that threads that began together do not hand back together."""
    return SHORT_SLICES * random.uniform(0.75, 1.25)


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """How long a Celery task keeps its thread. A long run is a task of its own, which Flower shows. Short
    runs share one, because the way through the broker costs more than such a run: the thread is handed back
    when other wakes may wait for it, and from time to time.

    seconds: the least time that a thread is kept; a job that runs longer is not short. began: monotonic.
    is_wanted: whether other wakes may wait for the thread. short_slices: as `SHORT_SLICES`, for this one."""

    seconds: float
    began: float
    is_wanted: Callable[[], bool] = lambda: True
    short_slices: float = SHORT_SLICES

    def is_over(self, now: float, ran_seconds: float) -> bool:
        """Return whether the thread is handed back after a job that ran for `ran_seconds`."""
        worked = now - self.began
        if worked < self.seconds:
            return False
        return ran_seconds >= self.seconds or worked >= self.seconds * self.short_slices or self.is_wanted()


@dataclass(slots=True)
class _Prefetched:
    claimed: Claimed
    since: float


class PrefetchedJobs:
    """The prefetched jobs of this worker's slots, by the attempt that runs there now. A job is removed either
    by the thread of its slot, which begins it, or by the watcher, which gives it back when the current run
    takes longer than expected: another slot may be free sooner.

    short_seconds: nothing is prefetched behind a run that is expected to take longer, because a prefetched
    job has its place decided early and is bound to one slot."""

    def __init__(self, short_seconds: float) -> None:
        self.short_seconds, self.kept_seconds = short_seconds, KEPT_SECONDS
        self._lock = threading.Lock()
        self._prefetched: dict[str, _Prefetched] = {}
        self._unanswered: dict[str, str] = {}
        self._empty_until: dict[str, float] = {}
        self._lost: list[Claimed] = []

    def put(self, holder_id: str, claimed: Claimed, now: float) -> None:
        """now: monotonic, as for `overdue`."""
        with self._lock:
            self._prefetched[holder_id] = _Prefetched(claimed, now)

    def take(self, holder_id: str) -> tuple[Claimed | None, str | None]:
        """Remove what the ended holder left: the prefetched job, and the attempt id of a reservation whose
        answer was lost."""
        with self._lock:
            found = self._prefetched.pop(holder_id, None)
            return found.claimed if found else None, self._unanswered.pop(holder_id, None)

    def overdue(self, now: float) -> list[Claimed]:
        """Remove and return the jobs that waited too long or whose lease was lost."""
        with self._lock:
            late = [
                holder for holder, one in self._prefetched.items() if now - one.since >= self.kept_seconds
            ]
            found = [*self._lost, *(self._prefetched.pop(holder).claimed for holder in late)]
            self._lost.clear()
            return found

    def mark_lost(self, ref: LeaseRef) -> None:
        """Its lease is lost: the job does not begin."""
        with self._lock:
            for holder, one in list(self._prefetched.items()):
                if one.claimed.lease.ref == ref:
                    self._lost.append(self._prefetched.pop(holder).claimed)

    def leases(self) -> list[Lease]:
        with self._lock:
            return [one.claimed.lease for one in self._prefetched.values()]

    def cancel(self, job_ids: Collection[str]) -> None:
        """Cancel these jobs: each ends when its slot is free, without being sent."""
        with self._lock:
            for one in self._prefetched.values():
                if one.claimed.ready is not None and one.claimed.lease.job_id in job_ids:
                    one.claimed.ready.run.order(Order.CANCEL)

    def may_reserve(self, pool: str, now: float) -> bool:
        """Return False shortly after the pool had no job to prefetch. now: monotonic."""
        with self._lock:
            return now >= self._empty_until.get(pool, now)

    def note_empty(self, pool: str, now: float) -> None:
        """The pool had no job to prefetch."""
        with self._lock:
            self._empty_until[pool] = now + EMPTY_SECONDS

    def note_unanswered(self, holder_id: str, attempt_id: str) -> None:
        """A reservation under this attempt id got no answer: it may have been granted."""
        with self._lock:
            self._unanswered[holder_id] = attempt_id
