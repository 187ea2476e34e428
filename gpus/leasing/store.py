"""One fleet's line and leases in Redis or Valkey: `gpus.leasing.contract.Leases` by Lua scripts."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

from gpus.errors import LayoutNotInUse, LeasingUnavailable, Verdict
from gpus.leasing import codec, keys
from gpus.leasing.beats import Beats
from gpus.leasing.connect import connect
from gpus.leasing.front_door import FrontDoor
from gpus.leasing.generations import Generations
from gpus.leasing.holding import Holding
from gpus.leasing.looking import Looking
from gpus.leasing.scripts import FAILURES, Client, Scripts
from gpus.leasing.values import (
    DEFAULT_RULES,
    CircuitRules,
    Circuits,
    ExpiredLease,
    ParkedFor,
    Pushed,
    PushResult,
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

MISSED_SWEEPS = 3
"""So many periods without a look at the expired leases are a gap."""
_ADOPTION_REST_CAP_US = 30_000_000
_TICKETS_PER_CALL = 500
_POOLS_PER_CALL = 50
"""While it answers, Redis serves nobody else."""
_OF_HOLDERS = frozenset(
    ("renew", "release", "give_back", "hand_over", "take_over", "settled", "granted", "is_held", "quarantine",
     "beat", "telemetry", "take_tokens")
)  # fmt: skip
"""What goes on in an index that is not in use: who holds a lease ends it as if nothing were, and the rest
needs no index."""


def _never() -> str:
    return ""


class RedisLeases(Beats, FrontDoor, Generations, Holding, Looking):
    """Safe to share between threads. now_ms, monotonic: as for `Scripts`.
    head_start_seconds: what a priority level inside a band is worth. refusal: why this index may not be used
    now by others than holders, else empty; asked before each call, so it must not wait. layout: of its keys;
    0 for this code's own."""

    def __init__(
        self,
        client: Client,
        fleet: str,
        *,
        lease_seconds: float = 15.0,
        sweep_seconds: float = 2.0,
        head_start_seconds: float = 60.0,
        circuit_rules: CircuitRules = DEFAULT_RULES,
        now_ms: Callable[[], int] | None = None,
        refusal: Callable[[], str] = _never,
        layout: int = 0,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        self.fleet = fleet
        self._scripts = Scripts(client, keys.prefix(fleet, layout), now_ms=now_ms, monotonic=monotonic)
        self._refusal = refusal
        self._lease_us = _us(lease_seconds)
        self._gap_us = _us(sweep_seconds * MISSED_SWEEPS)
        self._head_start_us = _us(head_start_seconds)
        self._circuit_rules = (
            circuit_rules.failures,
            _us(circuit_rules.rest_seconds),
            _us(circuit_rules.cap_seconds),
        )

    def check(self) -> bool:
        """Asks the server anew which run it is; whether its index is whole. Raises LeasingUnavailable."""
        try:
            self._scripts.load()
        except FAILURES as error:
            raise LeasingUnavailable(f"Redis does not answer: {error}") from error
        return self.generation() is not None

    # -- the registry --------------------------------------------------------------------------------

    def configure_pool(self, pool: PoolSpec) -> None:
        codec.check_names(pool.name)
        patience_us = _us(pool.affinity_patience_seconds)
        self._run("configure_pool", pool.name, pool.algorithm.value, patience_us, self._head_start_us)

    def configure_server(self, server: ServerSpec) -> tuple[Wakes, ...]:
        codec.check_names(server.name, server.pool, *server.models)
        models = "".join(f"{model}," for model in sorted(set(server.models)))
        return codec.read_wakes(
            self._run(
                "configure_server", server.name, server.pool, server.slots, server.desired.value,
                server.host or "", f",{models}",
            )
        )  # fmt: skip

    def forget_server(self, server: str) -> None:
        self._run("forget_server", server)

    def set_tenants(self, tenants: Sequence[TenantSpec]) -> tuple[Wakes, ...]:
        codec.check_names(*(tenant.name for tenant in tenants))
        wakes: list[Wakes] = []
        for first in range(0, len(tenants), _TICKETS_PER_CALL):
            args = chain.from_iterable(map(codec.tenant_args, tenants[first : first + _TICKETS_PER_CALL]))
            wakes += codec.read_wakes(self._run("set_tenants", *args))
        return tuple(wakes)

    def set_paused_tenants(
        self, pool: str, tenants: Sequence[str], *, reason: ParkedFor = ParkedFor.PAUSE
    ) -> tuple[Wakes, ...]:
        codec.check_names(pool, *tenants)
        return codec.read_wakes(self._run("set_paused_tenants", pool, reason.value, *tenants))

    # -- the line ------------------------------------------------------------------------------------

    def push(self, pool: str, tickets: Sequence[Ticket]) -> Pushed:
        results: list[PushResult] = []
        wakes: list[Wakes] = []
        failing: frozenset[str] = frozenset()
        codec.check_tickets(pool, tickets)
        for first in range(0, len(tickets), _TICKETS_PER_CALL):
            args = chain.from_iterable(
                (*codec.ticket_args(ticket), ticket.place_us, ticket.avoid_server or "")
                for ticket in tickets[first : first + _TICKETS_PER_CALL]
            )
            pushed = codec.read_pushed(self._run("push", pool, *args))
            results += pushed.results
            wakes += pushed.wakes
            failing |= pushed.failing
        return Pushed(tuple(results), tuple(wakes), failing)

    def remove(self, pool: str, ticket: Ticket) -> bool:
        return bool(self._run("remove", pool, *codec.ticket_args(ticket)))

    def has_tickets(self, pool: str, tickets: Sequence[Ticket]) -> list[bool]:
        found: list[bool] = []
        for first in range(0, len(tickets), _TICKETS_PER_CALL):
            some = tickets[first : first + _TICKETS_PER_CALL]
            args = chain.from_iterable(codec.ticket_args(ticket) for ticket in some)
            found += [bool(flag) for flag in self._run("has_tickets", pool, *args)]
        return found

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
        told = codec.warm_arg(warm)
        answer: codec.Answer = codec.ASK_AGAIN
        while answer == codec.ASK_AGAIN:
            answer = self._run("claim", pool, worker, attempt_id, host or "", self._lease_us, told)
        return codec.read_lease(answer)

    def take_over(self, ref: LeaseRef, *, worker: str, new_epoch: int) -> bool:
        return bool(self._run("take_over", *codec.ref_args(ref), worker, new_epoch, self._lease_us))

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
        if (next_attempt_id or begun) and mode is not ReleaseMode.SETTLE:
            raise ValueError("only a clean end (SETTLE) hands the slot on")
        seconds = "" if gpu_seconds is None else gpu_seconds
        rest_us = "" if rest_seconds is None else _us(rest_seconds)
        if mode is ReleaseMode.ADOPT:
            self._run("hand_over", *codec.ref_args(ref), worker, rest_us, _ADOPTION_REST_CAP_US)
            return None
        if mode is ReleaseMode.FREE:
            self._run("give_back", *codec.ref_args(ref), worker, gpu_seconds or 0, rest_us)
            return None
        return codec.read_lease(
            self._run(
                "release", *codec.ref_args(ref), mode.value, worker, seconds, next_attempt_id or "", rest_us,
                self._lease_us, verdict.value, *self._circuit_rules, codec.warm_arg(warm),
                *(codec.lease_args(begun) if begun else ()),
            )
        )  # fmt: skip

    def reserve(
        self, ref: LeaseRef, *, worker: str, next_attempt_id: str, warm: Sequence[str] | None = None
    ) -> Lease | None:
        told = codec.warm_arg(warm)
        return codec.read_lease(self._run("reserve", *codec.ref_args(ref), worker, next_attempt_id, told))

    def settled(self, refs: Sequence[LeaseRef]) -> tuple[Wakes, ...]:
        if not refs:
            return ()
        return codec.read_wakes(self._run("settled", *chain.from_iterable(map(codec.ref_args, refs))))

    # -- repair --------------------------------------------------------------------------------------

    def expired(self, limit: int = 100) -> list[ExpiredLease]:
        return [codec.read_expired(row) for row in self._run("expired", limit, self._gap_us, self._lease_us)]

    def resolve_expired(self, ref: LeaseRef, verdict: ExpiryVerdict) -> bool:
        return bool(self._run("resolve_expired", *codec.ref_args(ref), verdict.value))

    def keep(self, ref: LeaseRef) -> bool:
        return bool(self._run("keep", *codec.ref_args(ref), self._lease_us))

    def quarantine(self, slot: str, attempt_id: str, *, pool: str = "") -> None:
        self._run("quarantine", slot, attempt_id, pool)

    def free_slot(self, slot: str) -> tuple[Wakes, ...]:
        return codec.read_wakes(self._run("free_slot", slot))

    def last_lease_change_seconds(self, server: str) -> float:
        """Infinite if none ever began there."""
        seconds = self._run("last_change", server)
        return math.inf if seconds is None else float(seconds)

    def rest_server(self, server: str, seconds: float) -> None:
        self._run("rest_server", server, _us(seconds))

    def circuits(self, pool: str, servers: Sequence[str]) -> Circuits:
        models, found = self._run("circuits", pool, *servers)
        return Circuits(codec.read_circuits(models), codec.read_circuits(found))

    def reset_circuit(self, kind: CircuitKind, name: str, pool: str) -> tuple[bool, tuple[Wakes, ...]]:
        was_open, wakes = self._run("reset_circuit", kind.value, name, pool)
        return bool(was_open), codec.read_wakes(wakes)

    def fill(self) -> tuple[Wakes, ...]:
        pools = self._run("pools")
        wakes: list[Wakes] = []
        for first in range(0, len(pools), _POOLS_PER_CALL):
            wakes += codec.read_wakes(self._run("fill", *pools[first : first + _POOLS_PER_CALL]))
        return tuple(wakes)

    def _run(self, script: str, *args: codec.Arg) -> codec.Answer:
        if script not in _OF_HOLDERS and (why := self._refusal()):
            raise LayoutNotInUse(why)
        return self._scripts.run(script, *args)


_stores: dict[tuple[int, str, str, Callable[[str], str] | None], RedisLeases] = {}
_stores_lock = threading.Lock()


def redis_leases(url: str, fleet: str, refusal: Callable[[str], str] | None = None) -> RedisLeases:
    """The fleet's leases on the Redis at `url`, with the times of the settings; one per process, URL, fleet
    and refusal (a forked child makes its own). Raises LeasingUnavailable where a cluster does not answer.

    refusal: as for `RedisLeases`, by fleet.
    """
    from django.conf import settings

    which = (os.getpid(), url, fleet, refusal)
    with _stores_lock:
        if which not in _stores:
            try:
                client = connect(url)
            except FAILURES as error:
                raise LeasingUnavailable(f"Redis does not answer: {error}") from error
            knobs = settings.DISPATCHER
            _stores[which] = RedisLeases(
                client,
                fleet,
                lease_seconds=knobs.lease_seconds,
                sweep_seconds=knobs.sweep_seconds,
                circuit_rules=CircuitRules(
                    knobs.circuit_failures, knobs.circuit_rest_seconds, knobs.circuit_rest_cap_seconds
                ),
                refusal=_never if refusal is None else partial(refusal, fleet),
            )
        return _stores[which]


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)
