"""The interface of the lease layer: one fleet's waiting tickets and its leases on slots.

`store.RedisLeases` implements it. A method's rule is decided in the script of its name in `lua/`, except:

- `release`: also `hand_over.lua` and `give_back.lua`, by its mode;
- `record_heartbeat`: `beat.lua`; `heartbeats`: `beats.lua`; `telemetry_summaries`: `summaries.lua`;
- `queue_status`: `queue_status.lua`; `next_jobs`: `ahead.lua`; `estimate_seconds`: `estimate.lua`;
- `last_lease_change_seconds`: `last_change.lua`; `fill`: `pools.lua`, then `fill.lua`;
- `generation_age_seconds`, `unsure_age_seconds`, `fleet_time_us`: `generation.lua`.

The next ticket is picked in `lua/includes/pick.lua`, shares of bands and tenants are computed in
`lua/includes/shares.lua`, and `max_running` is enforced in `lua/includes/running.lua`. Services depend on
this protocol, so that the simulator can replace the store by one with faults.

A script is atomic. A method with a list (`renew`, `push`, `set_tenants`, `has_tickets`, `heartbeats`,
`slots_of`, `restore_shares`, `fill`) runs its script once per batch of rows, and `claim` repeats its script
after `again`: such a call is not atomic as a whole. All are idempotent on (job, attempt, epoch), and raise
`gpus.errors.LeasingUnavailable` when Redis does not answer or its index is not whole.

Terms: *settling*: an attempt has ended, and its end waits for its commit in the database (an uncommitted
end). *Follower*: the prefetched next job of a busy slot. *Adoptable*: a lease that lost its worker while its
job still runs on the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gpus.errors import Verdict
from gpus.leasing.values import (
    Circuits,
    ExpiredLease,
    Heartbeat,
    Measured,
    ParkedFor,
    PoolDepth,
    Pushed,
    QueueStatus,
    SlotView,
    SpareSlots,
    Summary,
    Tokens,
    Wakes,
)
from gpus.protocol import (
    CircuitKind,
    ExpiryVerdict,
    Lease,
    LeaseRef,
    PoolSpec,
    ReleaseMode,
    ServerSpec,
    TenantSpec,
    Ticket,
)


class Leases(Protocol):
    """The lease layer of one fleet."""

    # -- the registry, mirrored from the database; changes apply at once ----------------------------
    def configure_pool(self, pool: PoolSpec) -> None:
        """Set the pool's rules; waiting tickets follow at once."""
        ...

    def configure_server(self, server: ServerSpec) -> tuple[Wakes, ...]:
        """Add, close or change the server's slots at once; running leases continue. Returns wakes."""
        ...

    def forget_server(self, server: str) -> None:
        """Remove the server's slots. Its running leases continue until they end."""
        ...

    def servers(self) -> list[str]:
        """Names of all servers in the index, including removed ones while a lease holds a slot of theirs."""
        ...

    def set_tenants(self, tenants: Sequence[TenantSpec]) -> tuple[Wakes, ...]:
        """Set operator rules of tenants (weight, highest band, running limit), for waiting tickets too.

        Tenants that are not named keep theirs; unknown tenants have defaults. Returns wakes for tickets that
        may run now. A rebuilt index has lost the rules: set them before pushing tickets.
        """
        ...

    def set_paused_tenants(
        self, pool: str, tenants: Sequence[str], *, reason: ParkedFor = ParkedFor.PAUSE
    ) -> tuple[Wakes, ...]:
        """Set the complete list of the pool's tenants that get no new lease for this reason.

        A tenant that is no longer listed is released, unless another reason remains. Tickets of parked
        tenants keep their places, are not dispatched, and block no other ticket; running jobs continue, and
        new tickets are parked too. A released tenant competes like one that was idle: parked time earns no
        credit. Returns wakes for the released tickets. A rebuilt index has lost the list: set it before
        pushing tickets.
        """
        ...

    # -- tickets -------------------------------------------------------------------------------------
    def push(self, pool: str, tickets: Sequence[Ticket]) -> Pushed:
        """Enqueue tickets of waiting jobs. Returns one result per ticket, in order, and wakes."""
        ...

    def remove(self, pool: str, ticket: Ticket) -> bool:
        """Remove a waiting ticket. Returns False if the job is leased, settling or unknown."""
        ...

    def has_tickets(self, pool: str, tickets: Sequence[Ticket]) -> list[bool]:
        """For each ticket, whether its job waits, is leased or settling. For the reconciler."""
        ...

    # -- for the submit API --------------------------------------------------------------------------
    def take_tokens(self, tenant: str, tokens: int, *, per_second: float, burst: int) -> Tokens:
        """Take all tokens or none from the tenant's bucket, which fills by `per_second` up to `burst`.

        Needs no generation.
        """
        ...

    def spare_slots(self, pool: str, tenant: str, models: Sequence[str]) -> SpareSlots:
        """Free slots that a job of the tenant, submitted now, would find, by model."""
        ...

    # -- leases --------------------------------------------------------------------------------------
    def claim(
        self,
        pool: str,
        *,
        worker: str,
        attempt_id: str,
        host: str | None = None,
        warm: Sequence[str] | None = None,
    ) -> Lease | None:
        """Lease a free slot together with the next ticket, or return None. Adoptable leases come first.

        attempt_id: created by the caller; a second call with the same id returns the same lease. host: of a
        pinned worker, else None. warm: models that are loaded in the worker's own process, the likeliest
        first, whose jobs are preferred within the pool's patience; None: the slot's last model. An adopted
        lease (`Lease.adopted`) keeps its own attempt id and its old epoch: the caller raises the epoch in the
        database, then calls `take_over`.
        """
        ...

    def take_over(self, ref: LeaseRef, *, worker: str, new_epoch: int) -> bool:
        """Assign the adopted lease to `worker` under `new_epoch`. Returns False if another one was first."""
        ...

    def release(
        self,
        ref: LeaseRef,
        mode: ReleaseMode,
        *,
        worker: str,
        gpu_seconds: float | None = None,
        next_attempt_id: str | None = None,
        rest_seconds: float | None = None,
        verdict: Verdict = Verdict.NOTHING,
        warm: Sequence[str] | None = None,
        begun: Lease | None = None,
    ) -> Lease | None:
        """End a lease, correct its tenant's charge, and optionally claim the slot's next job, in one step.

        gpu_seconds: the real charge; None: the time held; 0: the server refused the job. next_attempt_id
        (ENDED only): claims the next ticket for the slot; if it is the follower's id, begins the follower,
        or drops it if the slot may not continue: then its job waits, and must be pushed. begun (ENDED only):
        the follower, if it runs already; it gets the slot, and the next ticket becomes its follower.
        rest_seconds: how long the server gets no lease, after a busy answer. verdict: evidence about server
        and model, for their circuit breakers. warm: as for `claim`. Returns the next lease. A lease that is
        no longer held under this ref is not changed, and no ticket is claimed.
        """
        ...

    def reserve(
        self, ref: LeaseRef, *, worker: str, next_attempt_id: str, warm: Sequence[str] | None = None
    ) -> Lease | None:
        """Prefetch: claim the follower of a held lease; it ends with that lease unless it begins.

        Returns None if fewer jobs wait than slots run, or if the server or a model of the pool failed last.
        """
        ...

    def confirm_ends(self, refs: Sequence[LeaseRef]) -> tuple[Wakes, ...]:
        """Confirm ends: forget those that are committed; slots that waited only for that become free."""
        ...

    def renew(
        self,
        worker: str,
        leases: Sequence[Lease],
        ending: Sequence[Lease],
        followers: Sequence[Lease] = (),
    ) -> list[LeaseRef]:
        """Extend leases and uncommitted ends of this worker. Returns those that it no longer holds.

        Followers live as long as the leases that they follow. During a rebuild the call also restores: an
        unknown lease gets its slot back, unless another attempt on it was leased later or at the same time;
        an unknown end is stored again; an unknown follower is lost, and its job is pushed like a waiting
        one.
        """
        ...

    def is_held(self, ref: LeaseRef) -> bool:
        """Whether the attempt has a lease, an uncommitted end, or is a follower, under exactly this ref."""
        ...

    def granted(self, attempt_id: str, *, worker: str) -> Lease | None:
        """The lease that an earlier claim with this attempt gave to this worker, if it still holds it."""
        ...

    # -- repair --------------------------------------------------------------------------------------
    def expired(self, limit: int = 100) -> list[ExpiredLease]:
        """Expired leases and uncommitted ends, oldest first.

        After a gap of more than 3 × sweep_seconds between two calls (Redis paused, Celery beat down) no lease
        expires before a full lease time from now, so that live keepers can renew.
        """
        ...

    def resolve_expired(self, ref: LeaseRef, verdict: ExpiryVerdict) -> bool:
        """Carry out the sweep's decision on a lease or end that is still expired under this ref.

        ADOPTABLE: the next claim adopts it (refused for an end whose slot was leased on). FREE, QUARANTINED:
        forget the lease; the caller has ended the attempt in the database. FOLLOWED: forget the lease, and
        give the slot to its follower, which is expired as well. Except for FOLLOWED the follower is dropped:
        its job waits, and must be pushed. Returns whether the decision was carried out.
        """
        ...

    def extend_lease(self, ref: LeaseRef) -> bool:
        """Extend a lease by one lease time for a live worker that cannot reach Redis.

        Returns False if it is not held under this ref.
        """
        ...

    def quarantine(self, slot: str, attempt_id: str, *, pool: str = "") -> bool:
        """Close a slot until `free_slot`, unless another attempt holds it.

        pool: of its server, if the server is not configured yet. Returns False if the slot was closed before,
        or another attempt holds it.
        """
        ...

    def free_slot(self, slot: str) -> tuple[Wakes, ...]:
        """Free a quarantined slot whose GPU was proven idle."""
        ...

    def last_lease_change_seconds(self, server: str) -> float:
        """Seconds since a lease of this server last began or ended.

        Lock sync compares the server's own count of free slots only after a quiet time.
        """
        ...

    def rest_server(self, server: str, seconds: float) -> None:
        """Give the server no lease for so many seconds, because it answered that it is busy."""
        ...

    def circuits(self, pool: str, servers: Sequence[str]) -> Circuits:
        """Circuit breakers of the pool's models and of these servers; all closed after a rebuild."""
        ...

    def reset_circuit(self, kind: CircuitKind, name: str, pool: str) -> tuple[bool, tuple[Wakes, ...]]:
        """Close a circuit. Returns whether it was open or had failures, and wakes for jobs that may run."""
        ...

    def fill(self) -> tuple[Wakes, ...]:
        """Reset pending wakes and compute the missing ones per pool and host; called every two seconds."""
        ...

    # -- pinned workers; these need no index ---------------------------------------------------------
    def record_heartbeat(
        self, server: str, report: Mapping[str, Any], telemetry: Mapping[str, Any] | None = None
    ) -> None:
        """Store the heartbeat of the server's pinned worker.

        report: JSON values. telemetry: one reading, added to the history of `TELEMETRY_KEPT` readings and to
        the summary of its five minutes.
        """
        ...

    def heartbeats(self, servers: Sequence[str]) -> dict[str, Heartbeat]:
        """The latest heartbeat by server; servers without one are left out."""
        ...

    def telemetry(self, server: str, within_seconds: float) -> list[Measured]:
        """The server's readings of the last `within_seconds`, the newest first."""
        ...

    def telemetry_summaries(self, server: str, within_seconds: float) -> list[Summary]:
        """The summaries of the server's readings of the last `within_seconds`, the newest first, without
        those in which none arrived."""
        ...

    # -- the generation ------------------------------------------------------------------------------
    def generation(self) -> str | None:
        """Id of the index's generation, or None if the index is not whole on the connected Redis."""
        ...

    def generation_age_seconds(self) -> float | None:
        """Seconds since the index was opened, or None if it is not whole."""
        ...

    def unsure_age_seconds(self) -> float | None:
        """As `generation_age_seconds`, but infinite if no lease could exist when the rebuild began."""
        ...

    def fleet_time_us(self) -> int | None:
        """The time of leases and fences, µs since the epoch; None while the index is not whole."""

    def begin_rebuild(self, owner: str, *, latest_start_us: int = 0) -> str:
        """Take or keep the rebuild lock. Returns the rebuild's name, or "" if another owner holds the lock.

        A name other than before means that Redis lost everything in between. The lock is lost 6 s after the
        owner's last heartbeat (this call, or `wipe`). latest_start_us: latest start of a lease in the
        database, µs since the epoch; the fleet's time continues after it, so that fences grow. Until the old
        index is wiped all other calls are refused; then all but claims work, until `open_generation`.
        """
        ...

    def wipe(self, owner: str, max_keys: int = 10_000) -> bool:
        """Delete about `max_keys` keys of the old index. Returns True once it is removed."""
        ...

    def restore_lease(self, lease: Lease, *, held_seconds: float | None = None) -> bool:
        """Give a live attempt of the database its slot back, with a full lease time and no worker.

        held_seconds: since it was leased, because rows have no Redis time; None: `leased_at_ms` counts.
        Returns False if a later attempt holds the slot.
        """
        ...

    def restore_shares(self, pool: str, got: Sequence[tuple[int, str, float]]) -> None:
        """Restore the fair order after a rebuild; counts once per tenant and index.

        got: (a priority of the band, tenant, GPU-seconds above the tenant with the least).
        """
        ...

    def open_generation(self, owner: str, *, none_held: bool = False) -> str:
        """Open the rebuilt index for claims. Returns the generation's id.

        none_held: no lease could exist when the rebuild began, not even one without a database row.
        """
        ...

    # -- read-only views -----------------------------------------------------------------------------
    def slots(self, server: str) -> list[SlotView]:
        """The server's slots; empty if it is unknown."""
        ...

    def slots_of(self, servers: Sequence[str]) -> list[SlotView]:
        """The slots of many servers, server by server; unknown servers are left out."""
        ...

    def depth(self, pool: str) -> PoolDepth:
        """Counts of the pool's tickets by model and of its slots by state."""
        ...

    def queue_status(self, pool: str, ticket: Ticket, *, is_waiting: bool = True) -> QueueStatus:
        """Why this ticket waits, or would wait if it were pushed now. Does not raise during a rebuild.

        is_waiting: False for a ticket that was not pushed.
        """
        ...

    def next_jobs(self, pool: str, most: int) -> list[str]:
        """Ids of at most `most` jobs that are probably leased next, in order, to prefetch their rows."""
        ...

    def estimate_seconds(self, model: str, tenant: str) -> float:
        """Running mean of GPU-seconds of this tenant's jobs of this model (else the model's, else 1.0)."""
        ...
