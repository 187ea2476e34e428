"""What the slots of this worker run next, claimed while they still run.

Between two short jobs of a slot nobody has to be asked then: the slot stands free for as long as it takes to
send a request. Whoever takes a follower out of here has it: the thread that runs its slot, to begin it, or
the watcher, to give it back, since another slot may be free for it sooner when its own takes longer than was
expected.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

from gpus.protocol import Lease, LeaseRef
from jobs.execution.claimed import Claimed
from jobs.execution.run_steps import Order

KEPT_SECONDS = 2.0
"""So long it waits for a run that takes longer than was expected."""
SHALLOW_SECONDS = 0.1
"""So long nobody asks again where fewer jobs wait than slots run."""


@dataclass(slots=True)
class _Follower:
    claimed: Claimed
    since: float


class Followers:
    """By the attempt that they follow. short_seconds: behind a run that is expected to take longer none is
    claimed: the order of the line is decided so much earlier, and what follows waits for that one slot."""

    def __init__(self, short_seconds: float) -> None:
        self.short_seconds, self.kept_seconds = short_seconds, KEPT_SECONDS
        self._lock = threading.Lock()
        self._followers: dict[str, _Follower] = {}
        self._asked: dict[str, str] = {}
        self._shallow_until: dict[str, float] = {}
        self._lost: list[Claimed] = []

    def put(self, holder_id: str, claimed: Claimed, now: float) -> None:
        """now: monotonic, as for `overdue`."""
        with self._lock:
            self._followers[holder_id] = _Follower(claimed, now)

    def take(self, holder_id: str) -> tuple[Claimed | None, str | None]:
        """The holder is over: its follower, and under which id one was asked for without an answer."""
        with self._lock:
            found = self._followers.pop(holder_id, None)
            return found.claimed if found else None, self._asked.pop(holder_id, None)

    def overdue(self, now: float) -> list[Claimed]:
        """Those that waited for too long or were lost: they are the caller's."""
        with self._lock:
            late = [holder for holder, one in self._followers.items() if now - one.since >= self.kept_seconds]
            found = [*self._lost, *(self._followers.pop(holder).claimed for holder in late)]
            self._lost.clear()
            return found

    def lose(self, ref: LeaseRef) -> None:
        """Its lease is gone: it does not begin."""
        with self._lock:
            for holder, one in list(self._followers.items()):
                if one.claimed.lease.ref == ref:
                    self._lost.append(self._followers.pop(holder).claimed)

    def leases(self) -> list[Lease]:
        with self._lock:
            return [one.claimed.lease for one in self._followers.values()]

    def cancel(self, job_ids: Collection[str]) -> None:
        """They end as soon as it is their turn, without being sent."""
        with self._lock:
            for one in self._followers.values():
                if one.claimed.ready is not None and one.claimed.lease.job_id in job_ids:
                    one.claimed.ready.run.order(Order.CANCEL)

    def may_ask(self, pool: str, now: float) -> bool:
        """Whether enough may wait in the pool for one to be claimed ahead. now: monotonic."""
        with self._lock:
            return now >= self._shallow_until.get(pool, now)

    def is_shallow(self, pool: str, now: float) -> None:
        """It had none."""
        with self._lock:
            self._shallow_until[pool] = now + SHALLOW_SECONDS

    def ask(self, holder_id: str, attempt_id: str) -> None:
        """A follower was asked for under this attempt id without an answer: it may be there all the same."""
        with self._lock:
            self._asked[holder_id] = attempt_id
