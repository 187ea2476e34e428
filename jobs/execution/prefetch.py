"""Slot prefetch: reserves a slot's next job while the current run is on the GPU.

The prefetched job is the follower of the current run's lease (the holder); `jobs.execution.slot_loop` decides
when it is reserved and sent."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

import structlog
from django.conf import settings

from gpus.errors import LeasingUnavailable
from gpus.protocol import Lease, LeaseRef
from gpus.runners.registry import is_polled
from jobs.execution.attempt_run import AttemptRun, Order
from jobs.execution.claiming import Claimed, Claims
from jobs.execution.completion import Completion, RunEnd
from jobs.execution.worker_state import ClaimGate, WorkerProcess
from jobs.ports import Ports

log = structlog.get_logger()

KEPT_SECONDS = 2.0
"""A prefetched job that has waited this long for the current run is given back."""
EMPTY_SECONDS = 0.1
"""Pause after a reservation found no job in the pool."""


@dataclass(slots=True)
class Turn:
    """The work that a slot postpones until the request of its next run has been sent.

    deferred_end: the end of the slot's previous run, until it is released and queued.
    is_over: the work is done.
    unanswered_id: attempt id of a reservation whose answer was lost.
    """

    deferred_end: RunEnd | None = None
    is_over: bool = False
    unanswered_id: str | None = None


class Ready(NamedTuple):
    """A claimed attempt with its run, which is not sent yet."""

    claimed: Claimed
    run: AttemptRun
    turn: Turn

    @property
    def lease(self) -> Lease:
        """The lease under which it runs."""
        return self.claimed.lease


class PrefetchedRuns:
    """The prefetched runs of a worker's slots, by the attempt that runs there now (the holder). Thread-safe.

    A run is removed by the thread of its slot, which begins it, or by the watcher, which gives it back when
    the current run takes longer than expected: another slot may be free sooner.
    """

    def __init__(self) -> None:
        self.kept_seconds = KEPT_SECONDS
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Ready, float]] = {}
        self._lost: list[Ready] = []

    def put(self, holder: Lease, ready: Ready, at: float) -> None:
        """Keep a run until `take`. at: monotonic."""
        with self._lock:
            self._held[holder.attempt_id] = (ready, at)

    def take(self, holder: Lease) -> Ready | None:
        """Remove and return the prefetched run of a holder that has ended."""
        with self._lock:
            found = self._held.pop(holder.attempt_id, None)
            return None if found is None else found[0]

    def leases(self) -> list[Lease]:
        """Return the leases of all prefetched runs."""
        with self._lock:
            return [ready.lease for ready, _ in self._held.values()]

    def cancel(self, job_ids: Collection[str]) -> None:
        """Cancel those of these jobs that are prefetched: each ends when its slot is free, and is not
        sent."""
        with self._lock:
            for ready, _ in self._held.values():
                if ready.lease.job_id in job_ids:
                    ready.run.order(Order.CANCEL)

    def mark_lost(self, ref: LeaseRef) -> None:
        """Note that another worker holds this lease: its job is not begun."""
        with self._lock:
            for holder, (ready, _) in list(self._held.items()):
                if ready.lease.ref == ref:
                    self._lost.append(self._held.pop(holder)[0])

    def take_overdue(self, now: float) -> list[Ready]:
        """Remove and return the runs that have waited too long, and those whose lease was lost. now:
        monotonic."""
        with self._lock:
            late = [holder for holder, (_, since) in self._held.items() if now - since >= self.kept_seconds]
            found = [*self._lost, *(self._held.pop(holder)[0] for holder in late)]
            self._lost.clear()
            return found


def return_overdue(prefetched: PrefetchedRuns, completion: Completion, ports: Ports) -> None:
    """Return the leases of runs that waited too long, since another slot may be free sooner, and of those
    whose lease was lost. While the index is being switched, return all of them."""
    now = math.inf if ports.layouts.switches_away() else ports.clock.monotonic()
    for ready in prefetched.take_overdue(now):
        completion.return_follower(ready.claimed.leases, ready.lease)


class SlotPrefetch:
    """Reserves the next jobs of a worker's slots. Thread-safe.

    short_seconds: no job is prefetched behind a run that is expected to take longer, because a prefetched job
    is bound to one slot, and jobs that arrive later can't overtake it.
    """

    def __init__(
        self,
        ports: Ports,
        process: WorkerProcess,
        gate: ClaimGate,
        claims: Claims,
        completion: Completion,
        *,
        prefetched: PrefetchedRuns,
    ) -> None:
        self.short_seconds = settings.DISPATCHER.claim_ahead_seconds
        self._ports, self._process, self._gate = ports, process, gate
        self._claims, self._completion, self._prefetched = claims, completion, prefetched
        self._lock = threading.Lock()
        self._empty_until: dict[str, float] = {}

    def may_prefetch(self, holder: Claimed) -> bool:
        """Return True if a job may be prefetched behind this run."""
        return (
            holder.lease.estimate_seconds < self.short_seconds
            and not is_polled(holder.spec)
            and not holder.spec.at_most_once
            and self._gate.may_claim()
        )

    def take(self, holder: Lease) -> Ready | None:
        """Remove and return the prefetched run of a holder that has ended."""
        return self._prefetched.take(holder)

    def reserve(
        self,
        holder: Claimed,
        turn: Turn,
        at: float,
        make: Callable[[Claimed], Ready],
        *,
        attempt_id: str,
        granted: Lease | None = None,
    ) -> None:
        """Reserve the holder's follower, make its run, and keep it until `take`; if it can't run, return its
        lease.

        turn: of the holder's run. at: monotonic, before its lease was asked for. attempt_id: of the follower.
        granted: the follower's lease, if the release of the slot's previous run granted it; None: lease the
        next ticket, if the pool has one and did not lack one just now.
        """
        lease = granted or self._next_lease(holder, turn, at, attempt_id)
        if lease is None:
            return
        try:
            claimed = self._claims.read_claimed(holder.fleet, holder.leases, lease)
        except Exception as error:  # the next claim of this job raises it again, and handles it
            log.warning(
                "prefetched_job_not_read", job_id=lease.job_id, slot=lease.slot, error=str(error).strip()
            )
            self._completion.return_follower(holder.leases, lease)
            return
        if claimed is None:
            return
        self._completion.keeper.add(lease, fleet=holder.fleet, asked_at=at, follows=True)
        self._prefetched.put(holder.lease, make(claimed), at)

    def _next_lease(self, holder: Claimed, turn: Turn, at: float, attempt_id: str) -> Lease | None:
        lease = holder.lease
        with self._lock:
            if at < self._empty_until.get(lease.pool, at):
                return None
        try:
            following = holder.leases.reserve(
                lease.ref,
                worker=self._process.name,
                next_attempt_id=attempt_id,
                warm=self._process.warm(),
            )
        except LeasingUnavailable as error:
            log.info("prefetch_not_claimed", slot=lease.slot, error=str(error))
            following = None
            turn.unanswered_id = attempt_id  # Redis may have granted it
        if following is None:
            with self._lock:
                self._empty_until[lease.pool] = at + EMPTY_SECONDS
        return following
