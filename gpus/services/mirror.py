"""The registry as the lease layer is told it: less what is paused.

A paused model is on no server, a paused system has only draining ones: what runs goes on, nothing starts. So
has a pinned server whose worker is gone, or says that its GPU can't run: nobody else can drive it. All of it
is told again from the rows whenever an index is made anew, so a pause outlives Redis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from django.db.models import QuerySet

from gpus import queries
from gpus.errors import LeasingUnavailable
from gpus.leasing.contract import Leases
from gpus.leasing.values import Wakes
from gpus.models import ModelConfig, Pause, Pool, Server
from gpus.protocol import DesiredState, ServerSpec

Told = TypeVar("Told")

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


def told_spec(server: Server, paused: Paused) -> ServerSpec:
    """Reads the placements: prefetch them in loops."""
    spec = server.spec()
    is_blind = server.host is not None and server.healthy is False
    stands_still = (paused.system or is_blind) and spec.desired is DesiredState.ON
    return replace(
        spec,
        models=tuple(model for model in spec.models if model not in paused.models),
        desired=DesiredState.DRAINING if stands_still else spec.desired,
    )


def mirror_registry(leases: Leases, *, fleet: str = "main") -> tuple[Wakes, ...]:
    """Tells the lease layer all pools, servers and pauses of its fleet. Raises LeasingUnavailable."""
    pools = Pool.objects.filter(fleet=fleet)
    _tell_pools(leases, pools)
    wakes = _tell_tenants(leases, pools)
    return (*wakes, *_tell_servers(leases, Server.objects.filter(pool__fleet=fleet)))


def mirror(leases: LeasesOf, pool: Pool, server: Server | None = None) -> tuple[tuple[Wakes, ...], bool]:
    """One pool and, if given, one server of it; the wakes for the caller to send, and whether Redis took it.
    What it did not take the sweep tells it."""
    try:
        store = leases(pool.fleet)
        rows = Pool.objects.filter(name=pool.name)
        _tell_pools(store, rows)
        tenants = _tell_tenants(store, rows)
        servers = Server.objects.filter(name=server.name) if server else Server.objects.none()
        return (*tenants, *_tell_servers(store, servers)), True
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
        servers = Server.objects.filter(pool__fleet=fleet)
        try:
            store = leases(fleet)
            if kind is Pause.Kind.TENANT:
                told = _tell_tenants(store, Pool.objects.filter(fleet=fleet))
            elif kind is Pause.Kind.MODEL:
                told = _tell_servers(store, servers.filter(placements__model=name))
            else:
                told = _tell_servers(store, servers)
            wakes += store.fill() if is_over else told
        except LeasingUnavailable:
            mirrored = False
    return tuple(wakes), mirrored


def _fleets_with(kind: Pause.Kind, name: str) -> Iterable[str]:
    pools = Pool.objects.all()
    if kind is Pause.Kind.MODEL:
        pools = pools.filter(pk__in=ModelConfig.objects.filter(name=name).values("pool"))
    return sorted(set(pools.order_by().values_list("fleet", flat=True)))


def _tell_pools(leases: Leases, pools: QuerySet[Pool]) -> None:
    _tell(lambda: {pool.name: pool.spec for pool in pools.all()}, leases.configure_pool)


def _tell_tenants(leases: Leases, pools: QuerySet[Pool]) -> tuple[Wakes, ...]:
    def read() -> dict[str, tuple[str, tuple[str, ...]]]:
        tenants = read_paused().tenants
        return {pool: (pool, tenants) for pool in pools.values_list("name", flat=True)}

    return _tell(read, lambda told: leases.set_paused_tenants(*told))


def _tell_servers(leases: Leases, servers: QuerySet[Server]) -> tuple[Wakes, ...]:
    def read() -> dict[str, ServerSpec]:
        paused = read_paused()
        return {one.name: told_spec(one, paused) for one in servers.prefetch_related("placements")}

    told: set[str] = set()

    def tell(spec: ServerSpec) -> tuple[Wakes, ...]:
        told.add(spec.name)
        return leases.configure_server(spec)

    wakes = _tell(read, tell)
    # one that was removed meanwhile must not stay behind as told
    for gone in told - set(Server.objects.filter(name__in=told).values_list("name", flat=True)):
        leases.forget_server(gone)
    return wakes


def _tell(
    read: Callable[[], dict[str, Told]], tell: Callable[[Told], tuple[Wakes, ...] | None]
) -> tuple[Wakes, ...]:
    """Until the rows say what was told: between the reading and the telling somebody else may have changed
    them and told it, and the older state must not stand in the lease layer after the newer one."""
    told: dict[str, Told] = {}
    wakes: list[Wakes] = []
    while news := {name: value for name, value in read().items() if told.get(name) != value}:
        for value in news.values():
            wakes += tell(value) or ()
        told |= news
    return tuple(wakes)
