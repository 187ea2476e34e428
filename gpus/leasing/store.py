"""One fleet's waiting tickets and leases in Redis or Valkey: `gpus.leasing.contract.Leases` by Lua
scripts."""

from __future__ import annotations

import json
import math
import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpus.errors import LayoutNotInUse, LeasingUnavailable, Verdict
from gpus.leasing import codec, keys
from gpus.leasing.codec import Argument, Row
from gpus.leasing.connect import connect
from gpus.leasing.readings import MAX_READING_BYTES, clean_reading, measures_of
from gpus.leasing.scripts import FAILURES, Client, Scripts
from gpus.leasing.values import (
    DEFAULT_RULES,
    MAX_SERVERS,
    SUMMARY_SECONDS,
    CircuitRules,
    Circuits,
    ExpiredLease,
    Heartbeat,
    Measured,
    ParkedFor,
    PoolDepth,
    Pushed,
    PushResult,
    QueueStatus,
    SlotView,
    SpareSlots,
    Summary,
    Tokens,
    Wakes,
    read_queue_status,
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

# batches are small, because Redis serves no other client while a script runs
_LEASES_PER_CALL = 100
TELEMETRY_KEPT = 720
"""Readings kept per server: one hour at one reading every five seconds."""
_HEARTBEATS_PER_CALL = 100
_SERVERS_PER_CALL = 5
REBUILD_SILENCE_SECONDS = 6
"""Without a heartbeat of its owner for this long, another process may take over a rebuild."""
_SHARES_PER_CALL = 500
MISSED_SWEEPS = 3
"""If no sweep listed expired leases for this many periods, leases get extra time (lua/expired.lua)."""
_ADOPTION_REST_CAP_US = 30_000_000
_ROWS_PER_CALL = 500
_POOLS_PER_CALL = 50
_FOR_HOLDERS = frozenset(
    (
        "renew",
        "release",
        "confirm_ends",
        "give_back",
        "hand_over",
        "take_over",
        "granted",
        "is_held",
        "quarantine",
    )
)
"""Scripts by which a holder ends its lease as usual, in an index that is not in use any more."""
_WITHOUT_INDEX = frozenset(("beat", "telemetry", "summaries", "take_tokens"))
_ALWAYS_ALLOWED = _FOR_HOLDERS | _WITHOUT_INDEX


def _no_refusal() -> str:
    return ""


class RedisLeases:
    """The leases of one fleet. Safe to share between threads.

    lease_seconds: lifetime of a lease without renewal. sweep_seconds: period of the sweep of expired leases.
    head_start_seconds: advantage of one priority level inside a band. now_ms, monotonic: as for `Scripts`.
    refusal: returns an empty text if the index is in use, else the reason why new work is refused; called
    before each script, so it must not block. layout: of its keys; 0: this code's own. telemetry_hours: how
    long summaries of telemetry are kept.
    """

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
        refusal: Callable[[], str] = _no_refusal,
        layout: int = 0,
        telemetry_hours: float = 24.0,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        self.fleet = fleet
        self._scripts = Scripts(client, keys.prefix(fleet, layout), now_ms=now_ms, monotonic=monotonic)
        self._refusal = refusal
        self._lease_us = _us(lease_seconds)
        self._gap_us = _us(sweep_seconds * MISSED_SWEEPS)
        self._head_start_us = _us(head_start_seconds)
        self._summaries = math.ceil(telemetry_hours * 3600 / SUMMARY_SECONDS)
        self._circuit_rules = {
            "failures": circuit_rules.failures,
            "first_rest_us": _us(circuit_rules.rest_seconds),
            "longest_rest_us": _us(circuit_rules.cap_seconds),
        }

    def check(self) -> bool:
        """Reload the library and return whether the index is whole. Raises LeasingUnavailable."""
        try:
            self._scripts.load()
        except FAILURES as error:
            raise LeasingUnavailable(f"Redis does not answer: {error}") from error
        return self.generation() is not None

    # -- registry ------------------------------------------------------------------------------------

    def configure_pool(self, pool: PoolSpec) -> None:
        codec.check_names(pool.name)
        patience_us = _us(pool.affinity_patience_seconds)
        self._run(
            "configure_pool",
            pool=pool.name,
            algorithm=pool.algorithm.value,
            patience_us=patience_us,
            head_start_us=self._head_start_us,
        )

    def configure_server(self, server: ServerSpec) -> tuple[Wakes, ...]:
        codec.check_names(server.name, server.pool, *server.models)
        models = "".join(f"{model}," for model in sorted(set(server.models)))
        return codec.read_wakes(
            self._run(
                "configure_server",
                server=server.name,
                pool=server.pool,
                slots=server.slots,
                desired=server.desired.value,
                host=server.host or "",
                models=f",{models}",
                registered_us=server.registered_us,
            )
        )

    def forget_server(self, server: str) -> None:
        self._run("forget_server", server=server)

    def servers(self) -> list[str]:
        return list(self._run("servers"))

    def set_tenants(self, tenants: Sequence[TenantSpec]) -> tuple[Wakes, ...]:
        codec.check_names(*(tenant.name for tenant in tenants))
        wakes: list[Wakes] = []
        for first in range(0, len(tenants), _ROWS_PER_CALL):
            rows = list(map(codec.tenant_args, tenants[first : first + _ROWS_PER_CALL]))
            wakes += codec.read_wakes(self._run("set_tenants", tenants=rows))
        return tuple(wakes)

    def set_paused_tenants(
        self, pool: str, tenants: Sequence[str], *, reason: ParkedFor = ParkedFor.PAUSE
    ) -> tuple[Wakes, ...]:
        codec.check_names(pool, *tenants)
        return codec.read_wakes(
            self._run("set_paused_tenants", pool=pool, reason=reason.value, tenants=list(tenants))
        )

    # -- tickets -------------------------------------------------------------------------------------

    def push(self, pool: str, tickets: Sequence[Ticket]) -> Pushed:
        results: list[PushResult] = []
        wakes: list[Wakes] = []
        failing: frozenset[str] = frozenset()
        codec.check_tickets(pool, tickets)
        for first in range(0, len(tickets), _ROWS_PER_CALL):
            rows = list(map(codec.pushed_args, tickets[first : first + _ROWS_PER_CALL]))
            pushed = codec.read_pushed(self._run("push", pool=pool, tickets=rows))
            results += pushed.results
            wakes += pushed.wakes
            failing |= pushed.failing
        return Pushed(tuple(results), tuple(wakes), failing)

    def remove(self, pool: str, ticket: Ticket) -> bool:
        return bool(self._run("remove", pool=pool, **codec.ticket_args(ticket)))

    def has_tickets(self, pool: str, tickets: Sequence[Ticket]) -> list[bool]:
        found: list[bool] = []
        for first in range(0, len(tickets), _ROWS_PER_CALL):
            rows = list(map(codec.ticket_args, tickets[first : first + _ROWS_PER_CALL]))
            found += [bool(flag) for flag in self._run("has_tickets", pool=pool, tickets=rows)]
        return found

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
        warm_models = codec.warm_arg(warm)
        answer: codec.Answer = codec.CLAIM_AGAIN
        while answer == codec.CLAIM_AGAIN:
            answer = self._run(
                "claim",
                pool=pool,
                worker=worker,
                attempt=attempt_id,
                host=host or "",
                lease_us=self._lease_us,
                warm=warm_models,
            )
        return codec.read_lease(answer)

    def take_over(self, ref: LeaseRef, *, worker: str, new_epoch: int) -> bool:
        return bool(
            self._run(
                "take_over",
                **codec.ref_args(ref),
                worker=worker,
                new_epoch=new_epoch,
                lease_us=self._lease_us,
            )
        )

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
        if (next_attempt_id or begun) and mode is not ReleaseMode.ENDED:
            raise ValueError(
                "next_attempt_id and begun require ReleaseMode.ENDED: only a clean end keeps the slot"
            )
        held = {**codec.ref_args(ref), "worker": worker}
        rest_us = None if rest_seconds is None else _us(rest_seconds)
        if mode is ReleaseMode.ADOPT:
            longest_us = _ADOPTION_REST_CAP_US
            self._run("hand_over", **held, first_rest_us=rest_us, longest_rest_us=longest_us)
            return None
        if mode is ReleaseMode.FREE:
            self._run("give_back", **held, seconds=gpu_seconds or 0, rest_us=rest_us)
            return None
        return codec.read_lease(
            self._run(
                "release",
                **held,
                mode=mode.value,
                seconds=gpu_seconds,
                next_attempt=next_attempt_id or None,
                rest_us=rest_us,
                lease_us=self._lease_us,
                verdict=verdict.value,
                **self._circuit_rules,
                warm=codec.warm_arg(warm),
                begun=codec.lease_args(begun) if begun else None,
            )
        )

    def reserve(
        self, ref: LeaseRef, *, worker: str, next_attempt_id: str, warm: Sequence[str] | None = None
    ) -> Lease | None:
        return codec.read_lease(
            self._run(
                "reserve",
                **codec.ref_args(ref),
                worker=worker,
                next_attempt=next_attempt_id,
                warm=codec.warm_arg(warm),
            )
        )

    def confirm_ends(self, refs: Sequence[LeaseRef]) -> tuple[Wakes, ...]:
        if not refs:
            return ()
        return codec.read_wakes(self._run("confirm_ends", ends=list(map(codec.ref_args, refs))))

    # -- repair --------------------------------------------------------------------------------------

    def expired(self, limit: int = 100) -> list[ExpiredLease]:
        rows = self._run("expired", limit=limit, gap_us=self._gap_us, lease_us=self._lease_us)
        return [codec.read_expired(row) for row in rows]

    def resolve_expired(self, ref: LeaseRef, verdict: ExpiryVerdict) -> bool:
        return bool(self._run("resolve_expired", **codec.ref_args(ref), verdict=verdict.value))

    def extend_lease(self, ref: LeaseRef) -> bool:
        return bool(self._run("extend_lease", **codec.ref_args(ref), lease_us=self._lease_us))

    def quarantine(self, slot: str, attempt_id: str, *, pool: str = "") -> bool:
        return bool(self._run("quarantine", slot=slot, attempt=attempt_id, pool=pool))

    def free_slot(self, slot: str) -> tuple[Wakes, ...]:
        return codec.read_wakes(self._run("free_slot", slot=slot))

    def last_lease_change_seconds(self, server: str) -> float:
        """Infinite if the server never had a lease."""
        seconds = self._run("last_change", server=server)
        return math.inf if seconds is None else float(seconds)

    def rest_server(self, server: str, seconds: float) -> None:
        self._run("rest_server", server=server, rest_us=_us(seconds))

    def circuits(self, pool: str, servers: Sequence[str]) -> Circuits:
        models, found = self._run("circuits", pool=pool, servers=list(servers))
        return Circuits(codec.read_circuits(models), codec.read_circuits(found))

    def reset_circuit(self, kind: CircuitKind, name: str, pool: str) -> tuple[bool, tuple[Wakes, ...]]:
        was_open, wakes = self._run("reset_circuit", kind=kind.value, name=name, pool=pool)
        return bool(was_open), codec.read_wakes(wakes)

    def fill(self) -> tuple[Wakes, ...]:
        pools = self._run("pools")
        wakes: list[Wakes] = []
        for first in range(0, len(pools), _POOLS_PER_CALL):
            wakes += codec.read_wakes(self._run("fill", pools=pools[first : first + _POOLS_PER_CALL]))
        return tuple(wakes)

    # -- for a worker: leases that it holds ----------------------------------------------------------

    def renew(
        self,
        worker: str,
        leases: Sequence[Lease],
        ending: Sequence[Lease],
        followers: Sequence[Lease] = (),
    ) -> list[LeaseRef]:
        ours, lost = [*leases, *ending, *followers], list[LeaseRef]()
        for first in range(0, len(ours), _LEASES_PER_CALL):
            piece = ours[first : first + _LEASES_PER_CALL]
            running = max(0, len(leases) - first)
            ends = max(0, len(leases) + len(ending) - first) - running
            gone = self._run(
                "renew",
                worker=worker,
                lease_us=self._lease_us,
                running=running,
                ending=ends,
                held=list(map(codec.lease_args, piece)),
            )
            lost += [piece[at].ref for at in gone]
        return lost

    def is_held(self, ref: LeaseRef) -> bool:
        return bool(self._run("is_held", **codec.ref_args(ref)))

    def granted(self, attempt_id: str, *, worker: str) -> Lease | None:
        return codec.read_lease(self._run("granted", worker=worker, attempt=attempt_id))

    # -- for the submit API ----------------------------------------------------------------------------------

    def take_tokens(self, tenant: str, tokens: int, *, per_second: float, burst: int) -> Tokens:
        codec.check_names(tenant)
        return codec.read_tokens(
            self._run(
                "take_tokens",
                tenant=tenant,
                tokens=tokens,
                per_second=per_second,
                burst=burst,
                request=uuid.uuid4().hex,
            )
        )

    def spare_slots(self, pool: str, tenant: str, models: Sequence[str]) -> SpareSlots:
        codec.check_names(pool, tenant, *models)
        return codec.read_spare(self._run("spare_slots", pool=pool, tenant=tenant, models=list(models)))

    # -- heartbeats of pinned workers: outside the index, so they survive a rebuild --------------------------

    def record_heartbeat(
        self, server: str, report: Mapping[str, Any], telemetry: Mapping[str, Any] | None = None
    ) -> None:
        codec.check_names(server)
        reading = {} if telemetry is None else clean_reading(telemetry)
        measures: list[Row] = [{"name": name, "value": value} for name, value in measures_of(reading).items()]
        self._run(
            "beat",
            server=server,
            said=json.dumps(report, separators=(",", ":")),
            telemetry=None if telemetry is None else json.dumps(reading, separators=(",", ":")),
            kept=TELEMETRY_KEPT,
            warm="".join(f"{model}," for model in reading.get("warm", ())),
            summary_us=_us(SUMMARY_SECONDS),
            summaries=self._summaries,
            measures=measures,
        )

    def heartbeats(self, servers: Sequence[str]) -> dict[str, Heartbeat]:
        found: dict[str, Heartbeat] = {}
        for first in range(0, len(servers), _HEARTBEATS_PER_CALL):
            some = servers[first : first + _HEARTBEATS_PER_CALL]
            found |= codec.read_heartbeats(some, self._run("beats", servers=list(some)))
        return found

    def telemetry(self, server: str, within_seconds: float) -> list[Measured]:
        within_us = _us(within_seconds)
        return codec.read_telemetry(
            self._run("telemetry", server=server, within_us=within_us, longest=MAX_READING_BYTES)
        )

    def telemetry_summaries(self, server: str, within_seconds: float) -> list[Summary]:
        most = math.ceil(within_seconds / SUMMARY_SECONDS) + 1  # the oldest one is not all within
        return codec.read_summaries(self._run("summaries", server=server, most=most), within_seconds)

    # -- read-only views -------------------------------------------------------------------------------------

    def slots(self, server: str) -> list[SlotView]:
        return self.slots_of([server])

    def slots_of(self, servers: Sequence[str]) -> list[SlotView]:
        views: list[SlotView] = []
        for first in range(0, len(servers), _SERVERS_PER_CALL):
            some = list(servers[first : first + _SERVERS_PER_CALL])
            views += map(codec.read_slot, self._run("slots", servers=some))
        return views

    def depth(self, pool: str) -> PoolDepth:
        return codec.read_depth(pool, self._run("depth", pool=pool))

    def queue_status(self, pool: str, ticket: Ticket, *, is_waiting: bool = True) -> QueueStatus:
        codec.check_tickets(pool, [ticket])
        known = {**codec.ticket_args(ticket), "job": ticket.job_id if is_waiting else ""}
        return read_queue_status(
            self._run("queue_status", pool=pool, **known, place_us=ticket.place_us, most_servers=MAX_SERVERS)
        )

    def next_jobs(self, pool: str, most: int) -> list[str]:
        return list(self._run("ahead", pool=pool, most=most))

    def estimate_seconds(self, model: str, tenant: str) -> float:
        return float(self._run("estimate", model=model, tenant=tenant))

    # -- the index and its rebuild ---------------------------------------------------------------------------

    def generation(self) -> str | None:
        found = self._run("generation")
        return None if found is None else str(found[0])

    def generation_age_seconds(self) -> float | None:
        found = self._run("generation")
        return None if found is None else float(found[1])

    def unsure_age_seconds(self) -> float | None:
        found = self._run("generation")
        if found is None:
            return None
        return math.inf if found[2] else float(found[1])

    def fleet_time_us(self) -> int | None:
        found = self._run("generation")
        return None if found is None else int(found[3])

    def begin_rebuild(self, owner: str, *, latest_start_us: int = 0) -> str:
        return str(
            self._run(
                "begin_rebuild",
                owner=owner,
                silence_us=REBUILD_SILENCE_SECONDS * 1_000_000,
                name=uuid.uuid4().hex,
                latest_start_us=latest_start_us,
            )
        )

    def wipe(self, owner: str, max_keys: int = 10_000) -> bool:
        return bool(self._run("wipe", owner=owner, max_keys=max_keys))

    def restore_lease(self, lease: Lease, *, held_seconds: float | None = None) -> bool:
        held_us = None if held_seconds is None else int(held_seconds * 1e6)
        row = codec.lease_args(lease)
        return bool(self._run("restore_lease", lease_us=self._lease_us, held_us=held_us, lease=row))

    def restore_shares(self, pool: str, got: Sequence[tuple[int, str, float]]) -> None:
        for first in range(0, len(got), _SHARES_PER_CALL):
            shares: list[Row] = [
                {"priority": priority, "tenant": tenant, "seconds": seconds}
                for priority, tenant, seconds in got[first : first + _SHARES_PER_CALL]
            ]
            self._run("restore_shares", pool=pool, shares=shares)

    def open_generation(self, owner: str, *, none_held: bool = False) -> str:
        held = "1" if none_held else ""
        return str(self._run("open_generation", owner=owner, id=uuid.uuid4().hex, none_held=held))

    def _run(self, script: str, /, **args: Argument) -> codec.Answer:
        if script not in _ALWAYS_ALLOWED and (why := self._refusal()):
            raise LayoutNotInUse(why)
        return self._scripts.run(script, **args)


class RedisFleets:
    """Creates `RedisLeases` per fleet on first use, with the durations of the settings.

    A forked child process creates its own. url: of Redis. refusal: as for `RedisLeases`, by fleet.
    """

    def __init__(self, url: str, refusal: Callable[[str], str] | None = None) -> None:
        self._url, self._refusal = url, refusal
        self._lock = threading.Lock()
        self._stores: dict[tuple[int, str], RedisLeases] = {}

    def __call__(self, fleet: str) -> RedisLeases:
        """Return the fleet's leases. Raises LeasingUnavailable if a cluster does not answer."""
        which = os.getpid(), fleet
        with self._lock:
            if which not in self._stores:
                self._stores[which] = self._make(fleet)
            return self._stores[which]

    def _make(self, fleet: str) -> RedisLeases:
        from django.conf import settings

        try:
            client = connect(self._url)
        except FAILURES as error:
            raise LeasingUnavailable(f"Redis does not answer: {error}") from error
        knobs = settings.DISPATCHER
        return RedisLeases(
            client,
            fleet,
            lease_seconds=knobs.lease_seconds,
            sweep_seconds=knobs.sweep_seconds,
            telemetry_hours=knobs.telemetry_hours,
            circuit_rules=CircuitRules(
                knobs.circuit_failures, knobs.circuit_rest_seconds, knobs.circuit_rest_cap_seconds
            ),
            refusal=_no_refusal if self._refusal is None else partial(self._refusal, fleet),
        )


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)
