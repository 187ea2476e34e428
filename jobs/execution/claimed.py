"""Claimed attempts on their way from the lease to the GPU, those too that wait behind their slot's current
run; and how long a thread keeps claiming."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpus.leasing.contract import Leases
from gpus.protocol import Endpoint, Lease, LeaseRef, ModelSpec
from jobs.execution.attempt_run import AttemptRun
from jobs.execution.completion import RunEnd, WrittenStart
from jobs.execution.run_steps import Order
from jobs.transitions import StartOutcome

SHORT_SLICES = 20
"""With short jobs and idle threads, a thread is kept for this many time slices."""
KEPT_SECONDS = 2.0
"""How long a prefetched job waits for the current run before it is given back."""
SHALLOW_SECONDS = 0.1
"""How long a pool without a job to prefetch is not asked again."""


class RunHook(Protocol):
    """What the slot's thread does during a run (`jobs.execution.prefetch.Prefetch`)."""

    time_slice: TimeSlice | None

    def finish_deferred(self) -> None: ...

    def defer_end(self, ended: RunEnd) -> None: ...


@dataclass(frozen=True, slots=True)
class Ready:
    """A prefetched run: made completely, and not sent yet."""

    run: AttemptRun
    prefetch: RunHook

    def begin(self, time_slice: TimeSlice) -> None:
        """Start the run's clock."""
        self.prefetch.time_slice = time_slice
        self.run.begin()


@dataclass(frozen=True, slots=True)
class Claimed:
    """A lease with all that its run needs. started: the start's commit; None for an adopted attempt.

    job: the row's `OF_JOB`, and its payload (None when adopted).
    ran_seconds: for how long an adopted attempt ran before.
    must_wait: nothing is sent before the start is durable.
    ready: the run of a prefetched attempt, made while the slot's current run goes on.
    """

    fleet: str
    leases: Leases
    lease: Lease
    job: Mapping[str, Any]
    spec: ModelSpec
    endpoint: Endpoint
    started: WrittenStart | None
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
        self._shallow_until: dict[str, float] = {}
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
            return now >= self._shallow_until.get(pool, now)

    def mark_shallow(self, pool: str, now: float) -> None:
        """The pool had no job to prefetch."""
        with self._lock:
            self._shallow_until[pool] = now + SHALLOW_SECONDS

    def note_unanswered(self, holder_id: str, attempt_id: str) -> None:
        """A reservation under this attempt id got no answer: it may have been granted."""
        with self._lock:
            self._unanswered[holder_id] = attempt_id
