"""What the lease layer offers to those above: one fleet's line of tickets and table of leases.

`store.RedisLeases` is the implementation: each method calls the script of its name in `lua/`, where its
rule is decided (`release` also `hand_over.lua` and `give_back.lua`). Who goes next is in
`lua/includes/pick.lua`, shares of bands and tenants in `lua/includes/shares.lua`, `max_running` in
`lua/includes/parked.lua`. Services take this contract, so that the simulator can put a store with faults in
its place. Every method is one atomic script, raises `gpus.errors.LeasingUnavailable` when Redis does not
answer or its index is not whole, and may be sent twice without harm: it is idempotent on (job, attempt,
epoch).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gpus.errors import Verdict
from gpus.leasing.values import (
    Beat,
    Circuits,
    ExpiredLease,
    Measured,
    Outlook,
    ParkedFor,
    PoolDepth,
    Pushed,
    SlotView,
    SpareSlots,
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
    # -- the registry, mirrored from the database; idempotent, live ---------------------------------
    def configure_pool(self, pool: PoolSpec) -> None: ...
    def configure_server(self, server: ServerSpec) -> tuple[Wakes, ...]:
        """Slots appear, move above the count, or change their models at once; running leases go on."""
        ...

    def forget_server(self, server: str) -> None:
        """Removes the server's slots. Leases that still run there go on until they end."""
        ...

    def servers(self) -> list[str]:
        """All that the index knows, also forgotten ones while something holds one of their slots."""
        ...

    def set_tenants(self, tenants: Sequence[TenantSpec]) -> tuple[Wakes, ...]:
        """What the operator decided about them, live: tickets that wait stand by it at once. Tenants that
        are not named keep what they have, unknown ones have a new one's. Returns wakes for the tickets of
        those that may run more now. The index forgets it when it is lost: tell it before the tickets.
        """
        ...

    def set_paused_tenants(
        self, pool: str, tenants: Sequence[str], *, reason: ParkedFor = ParkedFor.PAUSE
    ) -> tuple[Wakes, ...]:
        """All tenants of the pool that get no new lease for this reason; who is not named any more goes on,
        unless there is another reason.

        Their tickets are parked: they keep their places and are reachable, but nobody is given one, and they
        hold nobody up. What runs, runs on; what is pushed, or pushed again, is parked too. Who goes on takes
        turns as one that comes back from idle: the time in between is no credit. Returns wakes for the
        tickets that came back. The index forgets it when it is lost: tell it before the tickets.
        """
        ...

    # -- the line ------------------------------------------------------------------------------------
    def push(self, pool: str, tickets: Sequence[Ticket]) -> Pushed: ...
    def remove(self, pool: str, ticket: Ticket) -> bool:
        """True if the ticket stood in line and is gone now; False: it is leased, settling or unknown."""
        ...

    def has_tickets(self, pool: str, tickets: Sequence[Ticket]) -> list[bool]:
        """Whether each one is reachable: in line, leased or settling (the reconciler asks)."""
        ...

    # -- the front door ------------------------------------------------------------------------------
    def take_tokens(self, tenant: str, tokens: int, *, per_second: float, burst: int) -> Tokens:
        """From the tenant's bucket, which fills by `per_second` up to `burst`: all or none. Needs no
        generation."""
        ...

    def spare_slots(self, pool: str, tenant: str, models: Sequence[str]) -> SpareSlots:
        """What a job that came now would find."""
        ...

    # -- the leases ----------------------------------------------------------------------------------
    def claim(
        self,
        pool: str,
        *,
        worker: str,
        attempt_id: str,
        host: str | None = None,
        warm: Sequence[str] | None = None,
    ) -> Lease | None:
        """A slot *and* the next ticket, or neither. Adoptable leases first (`Lease.adopted`).

        attempt_id is minted by the caller; asked again with the same one, it returns the same lease.
        warm: models whose jobs are preferred within the pool's patience, told by a worker that holds them
        itself, the likeliest first; None: the model that was leased on the slot last.
        An adopted lease keeps its own attempt id and its old epoch: the caller raises the epoch in the
        database, then calls `take_over`.
        """
        ...

    def take_over(self, ref: LeaseRef, *, worker: str, new_epoch: int) -> bool:
        """The adopted lease now belongs to `worker` under `new_epoch`. False: somebody else was first."""
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
        """Ends a lease, corrects its tenant's charge, and with `next_attempt_id` (SETTLE only) claims the
        next ticket for the same slot in the same step. gpu_seconds: the real charge; None: the time held;
        0: refused. rest_seconds: the server gets no lease for that long (it said it was busy).
        verdict: what this end says of the server and the model, for their circuits. warm: as for `claim`.
        begun: its follower, which runs already (SETTLE only): the slot is that one's, and what is claimed is
        its follower. A `next_attempt_id` that is the follower's begins it, if the slot may go on; else it is
        dropped: its job waits, and must be pushed.
        A lease that is not held under this ref any more is left alone, and nothing is claimed.
        """
        ...

    def reserve(
        self, ref: LeaseRef, *, worker: str, next_attempt_id: str, warm: Sequence[str] | None = None
    ) -> Lease | None:
        """Claims what the slot runs after the lease that it is held under: its follower, which goes with that
        lease unless it begins. None where fewer jobs wait than slots run, or something failed there last."""
        ...

    def settled(self, refs: Sequence[LeaseRef]) -> tuple[Wakes, ...]:
        """Their ends are committed: forgets them; a slot that was only waiting for that is free again."""
        ...

    def renew(
        self,
        worker: str,
        leases: Sequence[Lease],
        settling: Sequence[Lease],
        followers: Sequence[Lease] = (),
    ) -> list[LeaseRef]:
        """Extends leases and unconfirmed ends of this worker; returns those it no longer holds. Followers
        live as long as the leases that they follow.

        While the index is being rebuilt, it re-announces them as well: an unknown lease gets its slot
        back, unless that holds another attempt that was leased as late or later; an unknown end settles; an
        unknown follower is lost: its job is pushed like all that wait.
        """
        ...

    def is_held(self, ref: LeaseRef) -> bool: ...

    def granted(self, attempt_id: str, *, worker: str) -> Lease | None:
        """What a claim under this attempt gave this worker and still holds; asking claims nothing."""
        ...

    # -- repair --------------------------------------------------------------------------------------
    def expired(self, limit: int = 100) -> list[ExpiredLease]:
        """Leases past their time, oldest first. After a gap between two calls of more than 3 × sweep_seconds
        (Redis paused, beat down) nothing is past its time before a full lease time from now, so that live
        keepers can renew."""
        ...

    def resolve_expired(self, ref: LeaseRef, verdict: ExpiryVerdict) -> bool:
        """Only if it is still expired under this ref. ADOPTABLE keeps the ticket out of the line (refused for
        an end whose slot was handed on); FREE and QUARANTINED forget the lease (the caller has ended the
        attempt in the database); FOLLOWED too, and its follower, expired as well, has the slot. Otherwise the
        follower is dropped: its job waits, and must be pushed."""
        ...

    def keep(self, ref: LeaseRef) -> bool:
        """Its worker lives and holds it, though it can't renew: one lease time more. False: not held under
        this ref."""
        ...

    def quarantine(self, slot: str, attempt_id: str, *, pool: str = "") -> bool:
        """A slot that holds no lease of another attempt stays shut until `free_slot`. pool: of its
        server, where that is configured only after this. False: it was shut before, or another attempt holds
        it."""
        ...

    def free_slot(self, slot: str) -> tuple[Wakes, ...]:
        """A quarantined slot is proven free."""
        ...

    def last_lease_change_seconds(self, server: str) -> float:
        """Seconds since any lease of this server began or ended (lock sync trusts counts only if old)."""
        ...

    def rest_server(self, server: str, seconds: float) -> None: ...

    def circuits(self, pool: str, servers: Sequence[str]) -> Circuits:
        """Of the pool's models and of these servers. An index made anew has closed circuits only."""
        ...

    def reset_circuit(self, kind: CircuitKind, name: str, pool: str) -> tuple[bool, tuple[Wakes, ...]]:
        """Closes it; whether there was something to close, and the wakes for what may run again."""
        ...

    def fill(self) -> tuple[Wakes, ...]:
        """The two-second fill: forgets pending wakes and counts what is missing, per pool and host."""
        ...

    # -- pinned workers; these need no index ---------------------------------------------------------
    def beat(self, server: str, said: Mapping[str, Any], telemetry: Mapping[str, Any] | None = None) -> None:
        """The server's worker lives. telemetry: kept as history, the latest `TELEMETRY_KEPT`."""
        ...

    def beats(self, servers: Sequence[str]) -> dict[str, Beat]:
        """Those that were ever heard."""
        ...

    def telemetry(self, server: str, within_seconds: float) -> list[Measured]:
        """What it told in the last so many seconds, the newest first."""
        ...

    # -- the generation ------------------------------------------------------------------------------
    def generation(self) -> str | None:
        """The generation's id if the index is whole on the Redis we are connected to; None otherwise."""
        ...

    def generation_age_seconds(self) -> float | None: ...

    def unsure_age_seconds(self) -> float | None:
        """As `generation_age_seconds`; infinite where no lease could exist when the index was made."""
        ...

    def fleet_time_us(self) -> int | None:
        """The time that leases and fences go by, µs since the epoch; None while the index is not whole."""

    def begin_rebuild(self, owner: str, *, latest_start_us: int = 0) -> str:
        """For the one that may rebuild now, the name of its rebuild: another one than before says that Redis
        lost everything in between. Empty: it may not (another may after 6 s without a sign of life: this call
        by the same owner, or `wipe`). latest_start_us: of a lease that the database knows of, microseconds
        since the epoch; the fleet's time goes on after it, so that fences grow. The index is wiped step by
        step; until then other calls are refused, afterwards all work but claims, until `open_generation`."""
        ...

    def wipe(self, owner: str, max_keys: int = 10_000) -> bool:
        """One step of wiping; True when the old index is gone."""
        ...

    def restore_lease(self, lease: Lease, *, held_seconds: float | None = None) -> bool:
        """A live attempt of the database gets its slot back, with a full lease time and no worker.
        held_seconds: since it was leased, for rows do not know Redis' time; None: as the lease says."""
        ...

    def restore_shares(self, pool: str, got: Sequence[tuple[int, str, float]]) -> None:
        """What tenants got before the index was lost: (a priority of the band, tenant, GPU-seconds more than
        the one that got least). Counts once per tenant and index."""
        ...

    def open_generation(self, owner: str, *, none_held: bool = False) -> str:
        """none_held: no lease could exist when the rebuild began, also none that nobody told of."""
        ...

    # -- looking -------------------------------------------------------------------------------------
    def slots(self, server: str) -> list[SlotView]: ...
    def slots_of(self, servers: Sequence[str]) -> list[SlotView]:
        """Of many servers, server by server; what is unknown is left out."""
        ...

    def depth(self, pool: str) -> PoolDepth: ...
    def outlook(self, pool: str, ticket: Ticket, *, is_waiting: bool = True) -> Outlook:
        """Why this ticket waits, or would wait if it came now. Does not raise while the index is rebuilt."""
        ...

    def next_jobs(self, pool: str, most: int) -> list[str]:
        """Jobs that will probably be given out next, in that order: a guess at which rows to read ahead."""
        ...

    def estimate_seconds(self, model: str, tenant: str) -> float:
        """Running mean of GPU-seconds of this tenant's jobs of this model (else the model's, else 1.0)."""
        ...
