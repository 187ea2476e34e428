"""The prefetched jobs of this worker's slots.

A prefetched job is removed either by the thread of its slot, which begins it, or by the watcher, which gives
it back when the slot's current run takes longer than expected: another slot may be free sooner.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

from gpus.protocol import Lease, LeaseRef
from jobs.execution.claimed import Claimed
from jobs.execution.run_steps import Order

KEPT_SECONDS = 2.0
"""How long a prefetched job waits for the current run before it is given back."""
SHALLOW_SECONDS = 0.1
"""How long a pool without a job to prefetch is not asked again."""


@dataclass(slots=True)
class _Prefetched:
    claimed: Claimed
    since: float


class PrefetchedJobs:
    """Prefetched jobs by the attempt that runs now on their slot. short_seconds: nothing is prefetched behind
    a run that is expected to take longer, because a prefetched job has its place decided early and is bound
    to one slot."""

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
