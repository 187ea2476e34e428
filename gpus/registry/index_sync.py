"""Writes the registry to the lease layer (the index in Redis), less what is paused.

A paused model is on no server, a paused system has only draining ones: what runs goes on, nothing starts. So
has a pinned server whose worker is gone, or says that its GPU can't run: nobody else can drive it. A model
that is too large for a server is not on it, as long as the same process drives that server. A model whose
runner is not installed is on pinned servers only, which need none. All of it
is written again from the rows whenever an index is made anew, so a pause outlives Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from foundation.database import statements
from foundation.database.statements import value
from gpus.errors import LeasingUnavailable
from gpus.leasing.contract import Leases
from gpus.leasing.values import Wakes
from gpus.models import ModelConfig, Pause, Placement, Pool, QuarantinedSlot, Server
from gpus.models.server import TOO_LARGE
from gpus.protocol import DesiredState, ServerSpec, slot_name, split_slot
from gpus.registry import queries
from gpus.runners.registry import find_runner

Written = TypeVar("Written")

LeasesOf = Callable[[str], Leases]
"""The lease layer of a fleet, by the fleet's name."""


@dataclass(frozen=True, slots=True)
class Paused:
    """system: everything. models: names. tenants: as the lease layer names them."""

    system: bool
    models: frozenset[str]
    tenants: tuple[str, ...]


def read_paused() -> Paused:
    names: dict[str, list[str]] = {kind.value: [] for kind in Pause.Kind}
    for one in queries.pauses():
        names[one.kind].append(one.name)
    return Paused(
        bool(names[Pause.Kind.SYSTEM]), frozenset(names[Pause.Kind.MODEL]), tuple(names[Pause.Kind.TENANT])
    )


def index_spec(server: Server, paused: Paused, models: Iterable[str] | None = None) -> ServerSpec:
    """models: those it has, where the caller knows; else its placements are read."""
    spec = server.spec(models)
    is_blind = server.host is not None and server.healthy is False
    stands_still = (paused.system or is_blind) and spec.desired is DesiredState.ON
    return replace(
        spec,
        models=tuple(model for model in spec.models if model not in paused.models),
        desired=DesiredState.DRAINING if stands_still else spec.desired,
    )


def mirror_registry(leases: Leases, *, fleet: str = "main") -> tuple[Wakes, ...]:
    """Tells the lease layer all pools, servers and pauses of its fleet. Raises LeasingUnavailable."""
    pools = partial(_pools_of, fleet=fleet)
    _write_pools(leases, pools)
    wakes = _write_tenants(leases, pools)
    return (*wakes, *_write_servers(leases, partial(_servers_of, fleet=fleet)))


def mirror(leases: LeasesOf, pool: Pool, server: Server | None = None) -> tuple[tuple[Wakes, ...], bool]:
    """One pool and, if given, one server of it; the wakes for the caller to send, and whether Redis took it.
    What it did not take the sweep tells it."""
    try:
        store = leases(pool.fleet)
        rows = partial(_pool_named, name=pool.name)
        _write_pools(store, rows)
        tenants = _write_tenants(store, rows)
        servers = _write_servers(store, partial(_server_named, name=server.name)) if server else ()
        return (*tenants, *servers), True
    except LeasingUnavailable:
        return (), False


def mirror_pause(
    kind: Pause.Kind, name: str, leases: LeasesOf, *, is_over: bool
) -> tuple[tuple[Wakes, ...], bool]:
    """What a pause or its end changes; answers as `mirror`. At its end the fill counts the wakes: a slot that
    was free all the time does not become free by it."""
    mirrored = True
    wakes: list[Wakes] = []
    for fleet in _fleets_with(kind, name):
        try:
            store = leases(fleet)
            if kind is Pause.Kind.TENANT:
                written = _write_tenants(store, partial(_pools_of, fleet=fleet))
            elif kind is Pause.Kind.MODEL:
                written = _write_servers(store, partial(_servers_with, fleet=fleet, model=name))
            else:
                written = _write_servers(store, partial(_servers_of, fleet=fleet))
            wakes += store.fill() if is_over else written
        except LeasingUnavailable:
            mirrored = False
    return tuple(wakes), mirrored


def mirror_machine(machine: str, leases: LeasesOf) -> tuple[tuple[Wakes, ...], bool]:
    """All servers of a machine; answers as `mirror`."""
    mirrored = True
    wakes: list[Wakes] = []
    rows = Server.objects.filter(machine=machine).order_by()
    for fleet in sorted(set(rows.values_list("pool__fleet", flat=True))):
        try:
            wakes += _write_servers(leases(fleet), partial(_servers_of_machine, fleet=fleet, machine=machine))
        except LeasingUnavailable:
            mirrored = False
    return tuple(wakes), mirrored


def _fleets_with(kind: Pause.Kind, name: str) -> Iterable[str]:
    pools = Pool.objects.all()
    if kind is Pause.Kind.MODEL:
        pools = pools.filter(pk__in=ModelConfig.objects.filter(name=name).values("pool"))
    return sorted(set(pools.order_by().values_list("fleet", flat=True)))


def _servers_with(*, fleet: str, model: str) -> list[Server]:
    return list(Server.objects.filter(pool__fleet=fleet, placements__model=model))


def _servers_of_machine(*, fleet: str, machine: str) -> list[Server]:
    return list(Server.objects.filter(pool__fleet=fleet, machine=machine))


_pools_of = statements.Read(lambda: Pool.objects.filter(fleet=value(Pool, "fleet")))
_pool_named = statements.Read(lambda: Pool.objects.filter(name=value(Pool, "name")))
_servers_of = statements.Read(lambda: Server.objects.filter(pool__fleet=value(Pool, "fleet")))
_server_named = statements.Read(lambda: Server.objects.filter(name=value(Server, "name")))
_servers_of_named = statements.ReadAmong(
    (Server, "name"),
    rows=lambda names: Server.objects.filter(name__in=names, pool__fleet=value(Pool, "fleet")),
)
_servers_named = statements.ReadAmong(
    (Server, "name"), rows=lambda names: Server.objects.filter(name__in=names)
)
_still_there = statements.ReadAmong(
    (Server, "name"), rows=lambda names: Server.objects.filter(name__in=names).values_list("name", flat=True)
)
_placed_on = statements.ReadAmong(
    (Server, "name"),
    rows=lambda names: (
        Placement.objects.filter(server__name__in=names)
        .exclude(TOO_LARGE)
        .order_by()
        .values_list("server_id", "model_id", "model__model_type")
    ),
)
_suspects_on = statements.ReadAmong(
    (Server, "name"),
    rows=lambda names: (
        QuarantinedSlot.objects.filter(server__name__in=names, freed_at=None)
        .order_by("pk")
        .values_list("server_id", "slot", "attempt_id")
    ),
)


def _write_pools(leases: Leases, pools: Callable[[], list[Pool]]) -> None:
    _write_until_current(lambda: {pool.name: pool.spec for pool in pools()}, leases.configure_pool)


def _write_tenants(leases: Leases, pools: Callable[[], list[Pool]]) -> tuple[Wakes, ...]:
    def read() -> dict[str, tuple[str, tuple[str, ...]]]:
        tenants = read_paused().tenants
        return {pool.name: (pool.name, tenants) for pool in pools()}

    return _write_until_current(read, lambda written: leases.set_paused_tenants(*written))


@dataclass(frozen=True, slots=True)
class _IndexedServer:
    """suspects: its slots in quarantine, each with an attempt that may still be there."""

    spec: ServerSpec
    suspects: tuple[tuple[str, str], ...]


def _write_servers(leases: Leases, servers: Callable[[], list[Server]]) -> tuple[Wakes, ...]:
    def read() -> dict[str, _IndexedServer]:
        paused, rows = read_paused(), servers()
        models: dict[str, list[str]] = {one.name: [] for one in rows}
        suspects: dict[str, list[tuple[str, str]]] = {one.name: [] for one in rows}
        pinned = {one.name for one in rows if one.host is not None}
        for server, model, model_type in _placed_on(list(models)):
            if server in pinned or find_runner(model_type) is not None:
                models[server].append(model)
        for server, slot, attempt_id in _suspects_on(list(models)):
            suspects[server].append((slot_name(server, slot), attempt_id))
        return {
            one.name: _IndexedServer(index_spec(one, paused, models[one.name]), tuple(suspects[one.name]))
            for one in rows
        }

    written: set[str] = set()

    def write(one: _IndexedServer) -> tuple[Wakes, ...]:
        written.add(one.spec.name)
        # first: where Redis does not know the server, the slots would be free
        shut = shut_slots(leases, one.suspects, pool=one.spec.pool)
        return (*leases.configure_server(one.spec), *shut)

    wakes = _write_until_current(read, write)
    # one that was removed meanwhile must not stay behind as written
    if gone := written - set(_still_there(sorted(written))):
        wakes += _forget_servers(leases, gone, servers)
    return wakes


def forget_servers(leases: Leases, names: AbstractSet[str], *, fleet: str) -> tuple[Wakes, ...]:
    """Tell the lease layer of servers that were removed. Returns the wakes of those that were registered
    again meanwhile. Raises LeasingUnavailable."""
    return _forget_servers(leases, names, partial(_servers_of_named, sorted(names), fleet=fleet))


def _forget_servers(
    leases: Leases, names: AbstractSet[str], servers: Callable[[], list[Server]]
) -> tuple[Wakes, ...]:
    for name in names:
        leases.forget_server(name)
    again = [one.name for one in servers() if one.name in names]
    # the lease layer may have been told of them before it was told to forget them
    return _write_servers(leases, partial(_servers_named, again)) if again else ()


def shut_slots(leases: Leases, suspects: Iterable[tuple[str, str]], *, pool: str = "") -> tuple[Wakes, ...]:
    """Tell the lease layer of open quarantines that were just read. A slot whose quarantine was closed before
    it was told is free again. Returns the wakes for the caller to send.

    suspects: slot and attempt of each. pool: as for `Leases.quarantine`. Raises LeasingUnavailable.
    """
    shut = [slot for slot, attempt_id in suspects if leases.quarantine(slot, attempt_id, pool=pool)]
    if not shut:
        return ()
    servers = sorted({split_slot(slot)[0] for slot in shut})
    still = {slot_name(server, slot) for server, slot, _ in _suspects_on(servers)}
    return tuple(wake for slot in shut if slot not in still for wake in leases.free_slot(slot))


def _write_until_current(
    read: Callable[[], dict[str, Written]], write: Callable[[Written], tuple[Wakes, ...] | None]
) -> tuple[Wakes, ...]:
    """Write and read again until the rows are what was written: another process may change and write them
    between our read and our write, and the older state must not overwrite the newer one."""
    written: dict[str, Written] = {}
    wakes: list[Wakes] = []
    while news := {name: now for name, now in read().items() if written.get(name) != now}:
        for one in news.values():
            wakes += write(one) or ()
        written |= news
    return tuple(wakes)
