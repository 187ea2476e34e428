"""Renews the leases of one process: one thread, one renewal per fleet every few seconds (`lua/renew.lua`).

The keeper records which leases are held and when each was last confirmed; it makes no decision about jobs.
The code that runs an attempt adds its lease, marks it as ending *before* the release (as returned, if no end
will be written), and forgets it once the end is committed; a follower (the slot's prefetched next job) is
added with `follows`, and begins when it is sent. `step` is the whole work, so that the simulator can call it
under its own clock; the thread only waits between steps.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gpus.errors import LeasingUnavailable
from gpus.leasing.connect import TIMEOUT_SECONDS
from gpus.leasing.contract import Leases
from gpus.protocol import Clock, Lease, LeaseRef

log = structlog.get_logger(__name__)

RETRY_SECONDS = 1.0
"""Delay before a failed renewal is repeated, and period of the thread."""
_SLACK_SECONDS = 0.9


def announced_seconds(fleets: int) -> float:
    """Seconds after the start of a rebuild until every live keeper has announced its leases to the new index.

    A keeper checks all fleets once a second, and for each fleet a call on a dead connection may time out
    first.
    """
    return RETRY_SECONDS + fleets * TIMEOUT_SECONDS + _SLACK_SECONDS


@dataclass(slots=True)
class _Held:
    """One lease of this process.

    confirmed_at: monotonic time at which the last successful renewal (or the claim) was sent. returned: see
    `mark_returned`. follows: a follower that has not begun. in_renewal_until: when the last renewal that
    contains it ended; infinite while one is under way.
    """

    lease: Lease
    fleet: str
    confirmed_at: float
    ending: bool = False
    returned: bool = False
    follows: bool = False
    in_renewal_until: float = -math.inf


class LeaseKeeper:
    """Renews the leases of one process in a thread of its own.

    leases: by fleet. worker: name of this process in the leases. renew_seconds: period of renewals. on_lost:
    called from the keeper's thread once per lease that another holder has now, so it should only set a flag;
    a lost uncommitted end is not reported, because its commit decides.
    """

    def __init__(
        self,
        leases: Callable[[str], Leases],
        *,
        worker: str,
        renew_seconds: float,
        clock: Clock,
        on_lost: Callable[[LeaseRef], None],
    ) -> None:
        self._leases = leases
        self._worker = worker
        self._renew_seconds = renew_seconds
        self._clock = clock
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._held: dict[LeaseRef, _Held] = {}
        self._due_at: dict[str, float] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def add(
        self, lease: Lease, *, fleet: str = "main", asked_at: float | None = None, follows: bool = False
    ) -> None:
        """Add a lease to be renewed.

        asked_at: monotonic time at which the claim was *sent* (default: now); the lease's age counts from
        there, because the reply may have taken long. follows: the lease is a follower that has not begun.
        """
        since = self._clock.monotonic() if asked_at is None else asked_at
        with self._lock:
            self._held[lease.ref] = _Held(lease, fleet, since, follows=follows)

    def begin_follower(self, ref: LeaseRef) -> bool:
        """Mark a follower as begun, possibly before Redis records it. Returns False if it was lost."""
        with self._lock:
            held = self._held.get(ref)
            if held is not None:
                held.follows = False
            return held is not None

    def mark_ending(self, ref: LeaseRef) -> None:
        """Mark a lease as ending: its uncommitted end is renewed until `forget`. Unknown refs are ignored."""
        with self._lock:
            if held := self._held.get(ref):
                held.ending = True

    def mark_returned(self, ref: LeaseRef) -> None:
        """Mark a lease as returned without an end to write. It is renewed until Redis answers its release,
        but not announced to a rebuilt index, where it would wait for a commit that never comes. Unknown refs
        are ignored."""
        with self._lock:
            if held := self._held.get(ref):
                held.ending = held.returned = True

    def forget(self, ref: LeaseRef) -> None:
        """Stop renewing a lease or end. Unknown refs are ignored."""
        with self._lock:
            self._held.pop(ref, None)

    def forget_end(self, ref: LeaseRef, asked_at: float) -> bool:
        """Stop renewing an end or a returned lease whose `confirm_ends` or `release` call was sent at
        `asked_at` (monotonic).

        Returns False, and keeps it, if a renewal that contains it was under way since then: that renewal may
        have restored it in an index that is being rebuilt.
        """
        with self._lock:
            held = self._held.get(ref)
            if held is not None and held.in_renewal_until > asked_at:
                return False
            self._held.pop(ref, None)
            return True

    def age_seconds(self, lease: Lease) -> float:
        """Seconds since this lease was last confirmed; infinite if this process does not hold it.

        Checked just before a request is sent: an expired lease's slot may already have another holder.
        """
        with self._lock:
            held = self._held.get(lease.ref)
            return math.inf if held is None else self._clock.monotonic() - held.confirmed_at

    def unconfirmed(self, seconds: float) -> list[str]:
        """Ids of attempts that were not confirmed for so many seconds."""
        with self._lock:
            before = self._clock.monotonic() - seconds
            return [ref.attempt_id for ref, held in self._held.items() if held.confirmed_at < before]

    def held(self) -> int:
        """Number of leases, uncommitted ends and followers."""
        with self._lock:
            return len(self._held)

    def refs(self, fleet: str) -> list[LeaseRef]:
        """Refs of all leases, uncommitted ends and followers of the fleet."""
        with self._lock:
            return [ref for ref, held in self._held.items() if held.fleet == fleet]

    def step(self, now: float) -> list[LeaseRef]:
        """Renew each fleet that is due at `now` (monotonic seconds) or whose index is being rebuilt.

        A rebuilt index needs the leases that only their holders know. Returns the leases that were lost.
        """
        lost: list[LeaseRef] = []
        with self._lock:
            fleets = {held.fleet for held in self._held.values()}
        for fleet in sorted(fleets):
            if self._due_at.get(fleet, now) <= now or self._is_rebuilding(fleet, now):
                lost += self._renew(fleet, now)
        for ref in lost:
            log.warning(
                "lease_lost", job_id=ref.job_id, attempt=ref.attempt_id, epoch=ref.epoch, slot=ref.slot
            )
            self._notify_lost(ref)
        return lost

    def start(self) -> None:
        """Start the thread. Safe to call twice."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)
            self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """Stop the thread; leases that are still held expire. Safe to call twice."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)

    def _keep(self) -> None:
        while not self._stopping.is_set():
            try:
                self.step(self._clock.monotonic())
            except Exception:
                # without the thread every lease of this process would expire
                log.exception("lease_keeper_failed")
            self._stopping.wait(min(RETRY_SECONDS, self._renew_seconds))

    def _is_rebuilding(self, fleet: str, now: float) -> bool:
        try:
            return self._leases(fleet).generation() is None
        except LeasingUnavailable:
            self._due_at[fleet] = now  # the next step renews in any case
            return False

    def _renew(self, fleet: str, now: float) -> list[LeaseRef]:
        with self._lock:
            ours = [held for held in self._held.values() if held.fleet == fleet]
            ending = [held.lease for held in ours if held.ending and not held.returned]
            # these are renewed, but a rebuilt index that lacks them does not get them back
            unannounced = [held.lease for held in ours if held.returned or (held.follows and not held.ending)]
            running = [held.lease for held in ours if not (held.ending or held.follows)]
            for held in ours:
                held.in_renewal_until = math.inf
        try:
            gone = set(self._leases(fleet).renew(self._worker, running, ending, unannounced))
        except LeasingUnavailable as error:
            self._due_at[fleet] = now + min(RETRY_SECONDS, self._renew_seconds)
            log.warning("leases_not_renewed", fleet=fleet, held=len(ours), error=str(error))
            return []
        finally:
            with self._lock:
                for held in ours:
                    held.in_renewal_until = self._clock.monotonic()
        self._due_at[fleet] = now + self._renew_seconds
        return self._confirm(fleet, [*running, *ending], unannounced, gone, now)

    def _confirm(
        self, fleet: str, leases: list[Lease], unannounced: list[Lease], gone: set[LeaseRef], now: float
    ) -> list[LeaseRef]:
        lost = []
        unannounced_refs = {lease.ref for lease in unannounced}
        with self._lock:
            for lease in (*leases, *unannounced):
                held = self._held.get(lease.ref)
                if held is None:
                    continue
                if lease.ref not in gone:
                    held.confirmed_at = max(held.confirmed_at, now)
                elif lease.ref in unannounced_refs and not (held.follows or held.returned):
                    self._due_at[fleet] = now  # it began meanwhile: the next step renews it as a lease
                elif not held.ending:  # its end may have begun during the renewal
                    del self._held[lease.ref]
                    lost.append(lease.ref)
        return lost

    def _notify_lost(self, ref: LeaseRef) -> None:
        try:
            self._on_lost(ref)
        except Exception:
            # one error must not prevent the calls for other lost leases
            log.exception("lease_lost_listener_failed", job_id=ref.job_id, attempt=ref.attempt_id)
