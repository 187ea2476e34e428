"""Keeps the leases of one process alive: one thread, one renewal per fleet every few seconds.

The keeper knows what is held and since when it is sure of it; it decides nothing about jobs. Whoever runs
an attempt adds its lease, turns it into a settling end *before* releasing it, and forgets it once the end
is confirmed; a follower (what a slot runs next) is added as one, and begins when it is sent. `step` is the
whole of it, so that the simulator can call it under its own clock; the thread only waits between steps.
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
"""How soon a failed renewal is tried again; the thread also looks this often for what is due."""
_SLACK_SECONDS = 0.9


def announced_seconds(fleets: int) -> float:
    """So long after an index began to be filled every living keeper has announced its leases to it: it looks
    at all fleets once a second, and a call on a connection that died with the old index may have to time out
    first, for each fleet."""
    return RETRY_SECONDS + fleets * TIMEOUT_SECONDS + _SLACK_SECONDS


@dataclass(slots=True)
class _Held:
    """sure_at: monotonic time at which the last successful renewal (or the claim) was sent. follows: it did
    not begin yet. named_until: when the last renewal that names it was over; infinite while one is under
    way."""

    lease: Lease
    fleet: str
    sure_at: float
    settling: bool = False
    follows: bool = False
    named_until: float = -math.inf


class LeaseKeeper:
    """`on_lost` is called from the keeper's thread, once per lease that belongs to somebody else now;
    it should only set a flag. A settling end that is gone is not reported: its commit decides."""

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
        """asked_at: monotonic time at which the claim was *sent* (default: now); the lease's age counts
        from there, because its answer may have been long under way. follows: it is the follower of another
        one."""
        since = self._clock.monotonic() if asked_at is None else asked_at
        with self._lock:
            self._held[lease.ref] = _Held(lease, fleet, since, follows=follows)

    def begin(self, ref: LeaseRef) -> bool:
        """The follower holds the slot from now on, also before Redis has heard of it. False: it was lost."""
        with self._lock:
            held = self._held.get(ref)
            if held is not None:
                held.follows = False
            return held is not None

    def settle(self, ref: LeaseRef) -> None:
        """The run is over; its end goes on being renewed until `forget`. Unknown refs are ignored."""
        with self._lock:
            if held := self._held.get(ref):
                held.settling = True

    def forget(self, ref: LeaseRef) -> None:
        with self._lock:
            self._held.pop(ref, None)

    def forget_end(self, ref: LeaseRef, asked_at: float) -> bool:
        """Of an end that was settled by a call sent at `asked_at`, monotonic. False: it is kept, because a
        renewal that names it was under way since then, and brings it back into an index that is made anew."""
        with self._lock:
            held = self._held.get(ref)
            if held is not None and held.named_until > asked_at:
                return False
            self._held.pop(ref, None)
            return True

    def age_seconds(self, lease: Lease) -> float:
        """How old our knowledge of this lease is; infinite if it is not ours (any more). A sender looks
        here just before it sends: past the lease's time the slot may already be somebody else's."""
        with self._lock:
            held = self._held.get(lease.ref)
            return math.inf if held is None else self._clock.monotonic() - held.sure_at

    def unsure(self, seconds: float) -> list[str]:
        """Attempts whose last renewal that succeeded (or claim) is longer ago."""
        with self._lock:
            before = self._clock.monotonic() - seconds
            return [ref.attempt_id for ref, held in self._held.items() if held.sure_at < before]

    def held(self) -> int:
        """Leases and settling ends."""
        with self._lock:
            return len(self._held)

    def refs(self, fleet: str) -> list[LeaseRef]:
        """All that is renewed there: leases, settling ends and followers."""
        with self._lock:
            return [ref for ref, held in self._held.items() if held.fleet == fleet]

    def step(self, now: float) -> list[LeaseRef]:
        """Renews every fleet that is due at `now` (monotonic seconds), or whose index is being made anew and
        waits for what only we know; returns the leases that were lost."""
        lost: list[LeaseRef] = []
        with self._lock:
            fleets = {held.fleet for held in self._held.values()}
        for fleet in sorted(fleets):
            if self._due_at.get(fleet, now) <= now or self._is_made_anew(fleet, now):
                lost += self._renew(fleet, now)
        for ref in lost:
            log.warning(
                "lease_lost", job_id=ref.job_id, attempt=ref.attempt_id, epoch=ref.epoch, slot=ref.slot
            )
            self._tell(ref)
        return lost

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)
            self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """What is still held is left to run out. Safe to call twice."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_seconds)

    def _keep(self) -> None:
        while not self._stopping.is_set():
            try:
                self.step(self._clock.monotonic())
            except Exception:
                # a keeper that dies silently would cost every lease of this process
                log.exception("lease_keeper_failed")
            self._stopping.wait(min(RETRY_SECONDS, self._renew_seconds))

    def _is_made_anew(self, fleet: str, now: float) -> bool:
        try:
            return self._leases(fleet).generation() is None
        except LeasingUnavailable:
            self._due_at[fleet] = now  # the next step renews, whatever it is by then
            return False

    def _renew(self, fleet: str, now: float) -> list[LeaseRef]:
        with self._lock:
            ours = [held for held in self._held.values() if held.fleet == fleet]
            settling = [held.lease for held in ours if held.settling]
            following = [held.lease for held in ours if held.follows and not held.settling]
            running = [held.lease for held in ours if not (held.settling or held.follows)]
            for held in ours:
                held.named_until = math.inf
        try:
            gone = set(self._leases(fleet).renew(self._worker, running, settling, following))
        except LeasingUnavailable as error:
            self._due_at[fleet] = now + min(RETRY_SECONDS, self._renew_seconds)
            log.warning("leases_not_renewed", fleet=fleet, held=len(ours), error=str(error))
            return []
        finally:
            with self._lock:
                for held in ours:
                    held.named_until = self._clock.monotonic()
        self._due_at[fleet] = now + self._renew_seconds
        return self._confirm(fleet, [*running, *settling], following, gone, now)

    def _confirm(
        self, fleet: str, leases: list[Lease], following: list[Lease], gone: set[LeaseRef], now: float
    ) -> list[LeaseRef]:
        lost = []
        followed = {lease.ref for lease in following}
        with self._lock:
            for lease in (*leases, *following):
                held = self._held.get(lease.ref)
                if held is None:
                    continue
                if lease.ref not in gone:
                    held.sure_at = max(held.sure_at, now)
                elif lease.ref in followed and not held.follows:
                    self._due_at[fleet] = now  # it began meanwhile: told as a lease, or lost, next
                elif not held.settling:  # also not if it began to settle while the renewal was under way
                    del self._held[lease.ref]
                    lost.append(lease.ref)
        return lost

    def _tell(self, ref: LeaseRef) -> None:
        try:
            self._on_lost(ref)
        except Exception:
            # one listener's error must not keep the others from hearing of their loss
            log.exception("lease_lost_listener_failed", job_id=ref.job_id, attempt=ref.attempt_id)
