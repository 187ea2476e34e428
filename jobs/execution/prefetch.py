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
    """

    deferred_end: RunEnd | None = None
    is_over: bool = False


class Ready(NamedTuple):
    """A claimed attempt with its run, which is not sent yet."""

    claimed: Claimed
    run: AttemptRun
    turn: Turn

    @property
    def lease(self) -> Lease:
        """The lease under which it runs."""
        return self.claimed.lease


class SlotPrefetch:
    """The prefetched jobs of a worker's slots, by the attempt that runs there now (the holder). Thread-safe.

    A job is removed by the thread of its slot, which begins it, or by the watcher, which gives it back when
    the current run takes longer than expected: another slot may be free sooner.

    short_seconds: no job is prefetched behind a run that is expected to take longer, because a prefetched job
    is bound to one slot, and jobs that arrive later can't overtake it.
    """

    def __init__(
        self, ports: Ports, process: WorkerProcess, gate: ClaimGate, claims: Claims, completion: Completion
    ) -> None:
        self.short_seconds, self.kept_seconds = settings.DISPATCHER.claim_ahead_seconds, KEPT_SECONDS
        self._ports, self._process, self._gate = ports, process, gate
        self._claims, self._completion = claims, completion
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Ready, float]] = {}
        self._unanswered: dict[str, str] = {}
        self._empty_until: dict[str, float] = {}
        self._lost: list[Ready] = []

    # -- from the thread of the slot -----------------------------------------------------------------

    def may_prefetch(self, holder: Claimed) -> bool:
        """Return True if a job may be prefetched behind this run."""
        return (
            holder.lease.estimate_seconds < self.short_seconds
            and not is_polled(holder.spec)
            and not holder.spec.at_most_once
            and self._gate.may_claim()
        )

    def reserve(self, holder: Claimed, attempt_id: str, at: float) -> Lease | None:
        """Reserve the next ticket as the holder's follower; None if the pool has none, or had none just now.

        attempt_id: of the follower. at: monotonic."""
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
            with self._lock:  # Redis may have granted it
                self._unanswered[lease.attempt_id] = attempt_id
        if following is None:
            with self._lock:
                self._empty_until[lease.pool] = at + EMPTY_SECONDS
        return following

    def hold(self, holder: Claimed, lease: Lease, asked_at: float, make: Callable[[Claimed], Ready]) -> None:
        """Read the follower's job, make its run, and keep it until `take`; if it can't run, return its lease.

        asked_at: as for `Claims.open_lease`. make: makes the run."""
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
        self._completion.keeper.add(lease, fleet=holder.fleet, asked_at=asked_at, follows=True)
        ready, now = make(claimed), self._ports.clock.monotonic()
        with self._lock:
            self._held[holder.lease.attempt_id] = (ready, now)

    def take(self, holder: Lease) -> tuple[Ready | None, str | None]:
        """Remove and return the ended holder's prefetched run, and the attempt id of its reservation whose
        answer was lost; None for what it has not."""
        with self._lock:
            ready, _ = self._held.pop(holder.attempt_id, (None, 0.0))
            return ready, self._unanswered.pop(holder.attempt_id, None)

    # -- from other threads ----------------------------------------------------------------------------

    def leases(self) -> list[Lease]:
        """Return the leases of all prefetched jobs."""
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

    def return_overdue(self) -> None:
        """Return the leases of jobs that waited too long, since another slot may be free sooner, and of those
        whose lease was lost. While the index is being switched, return all of them."""
        now = math.inf if self._ports.layouts.switches_away() else self._ports.clock.monotonic()
        with self._lock:
            late = [holder for holder, (_, since) in self._held.items() if now - since >= self.kept_seconds]
            found = [*self._lost, *(self._held.pop(holder)[0] for holder in late)]
            self._lost.clear()
        for ready in found:
            self._completion.return_follower(ready.claimed.leases, ready.lease)
