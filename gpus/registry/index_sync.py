"""Writes the registry to the lease layer (the index in Redis), without paused parts.

The index lists a paused model on no server. Servers are draining (running jobs finish, no job starts) while
the system is paused; a pinned server also if its worker is gone or reports that its GPU cannot run. A model
that is too large for a server is not listed there while the same process drives it. A model whose runner is
not installed is listed on pinned servers only, which need no runner. Every rebuild of the index writes all of
it again from the rows, so that a pause survives a loss of Redis.
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
    """All pauses. system: whether the system is paused. models: names. tenants: ids in the lease layer."""

    system: bool
    models: frozenset[str]
    tenants: tuple[str, ...]


def read_paused() -> Paused:
    """Read all pauses."""
    names: dict[str, list[str]] = {kind.value: [] for kind in Pause.Kind}
    for one in queries.pauses():
        names[one.kind].append(one.name)
    return Paused(
        bool(names[Pause.Kind.SYSTEM]), frozenset(names[Pause.Kind.MODEL]), tuple(names[Pause.Kind.TENANT])
    )


def index_spec(server: Server, paused: Paused, models: Iterable[str] | None = None) -> ServerSpec:
    """The server as the index lists it, with pauses and health applied.

    models: placed on the server; None: its placements are read.
    """
    spec = server.spec(models)
    is_undrivable = server.host is not None and server.healthy is False
    is_stopped = (paused.system or is_undrivable) and spec.desired is DesiredState.ON
    return replace(
        spec,
        models=tuple(model for model in spec.models if model not in paused.models),
        desired=DesiredState.DRAINING if is_stopped else spec.desired,
    )


def mirror_registry(leases: Leases, *, fleet: str = "main") -> tuple[Wakes, ...]:
    """Write all pools, servers and pauses of a fleet. Returns wakes. Raises LeasingUnavailable."""
    pools = partial(_pools_of, fleet=fleet)
    _write_pools(leases, pools)
    wakes = _write_tenants(leases, pools)
    return (*wakes, *_write_servers(leases, partial(_servers_of, fleet=fleet)))


def mirror(leases: LeasesOf, pool: Pool, server: Server | None = None) -> tuple[tuple[Wakes, ...], bool]:
    """Write one pool and, if given, one server of it.

    Returns wakes for the caller to send, and whether Redis is up to date; if not, a sweep updates it later.
    """
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
    """Write the effect of a pause or of its end; returns as `mirror`.

    At the end of a pause `Leases.fill` computes the wakes, because slots that were free all the time need
    them too.
    """
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
    """Write all servers of a machine; returns as `mirror`."""
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
_existing_names = statements.ReadAmong(
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
    """A server for the index. suspects: (slot, attempt that may still run there) in quarantine."""

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
        # quarantine first: on a server that is new to Redis the slots would be free
        shut = quarantine_slots(leases, one.suspects, pool=one.spec.pool)
        return (*leases.configure_server(one.spec), *shut)

    wakes = _write_until_current(read, write)
    # a server that was removed meanwhile must not remain in the index
    if gone := written - set(_existing_names(sorted(written))):
        wakes += _forget_servers(leases, gone, servers)
    return wakes


def forget_servers(leases: Leases, names: AbstractSet[str], *, fleet: str) -> tuple[Wakes, ...]:
    """Remove servers from the lease layer. Raises LeasingUnavailable.

    Returns wakes of servers that were registered again meanwhile.
    """
    return _forget_servers(leases, names, partial(_servers_of_named, sorted(names), fleet=fleet))


def _forget_servers(
    leases: Leases, names: AbstractSet[str], servers: Callable[[], list[Server]]
) -> tuple[Wakes, ...]:
    for name in names:
        leases.forget_server(name)
    again = [one.name for one in servers() if one.name in names]
    # they may have been written to the index just before they were removed from it
    return _write_servers(leases, partial(_servers_named, again)) if again else ()


def quarantine_slots(
    leases: Leases, suspects: Iterable[tuple[str, str]], *, pool: str = ""
) -> tuple[Wakes, ...]:
    """Quarantine slots in the lease layer; frees those whose row was closed meanwhile.

    suspects: (slot, attempt) of open quarantine rows that were just read. pool: as for `Leases.quarantine`.
    Returns wakes for the caller to send. Raises LeasingUnavailable.
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
    """Write the rows and read them again until they equal what was written.

    Another process may change and write them between our read and our write, and the older state must not
    overwrite the newer one.
    """
    written: dict[str, Written] = {}
    wakes: list[Wakes] = []
    while changed := {name: now for name, now in read().items() if written.get(name) != now}:
        for one in changed.values():
            wakes += write(one) or ()
        written |= changed
    return tuple(wakes)
