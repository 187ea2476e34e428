"""The lease layer knows another registry than the database: a change was made while Redis was away or by
another door (the admin, a shell), or the index is new."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, F, Max, Q, Sum

from foundation.database import statements
from foundation.database.statements import value
from gpus.leasing.contract import Leases
from gpus.leasing.values import Wakes
from gpus.models import AuditEntry, Placement, Pool, Server
from gpus.protocol import BANDS, TenantSpec
from gpus.registry import queries as fleet_queries
from gpus.registry.index_sync import mirror_registry
from jobs.models import Tenant
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_fleets

PAGE = 5000


@dataclass(frozen=True, slots=True)
class _Known:
    """What this process told a fleet last. last_deed: the newest audit entry; what was switched there and
    back since the last look may have reached the lease layer only half. tenants: sums over all of them, to
    see a change of their rules cheaply."""

    generation: str
    last_deed: int | None
    registry: frozenset[tuple[object, ...]]
    servers: frozenset[str]
    tenants: tuple[object, ...]


_known: dict[str, _Known] = {}


def sweep(ports: Ports) -> SweepCount:
    """repaired: fleets that were told. Costs a few short reads while nothing changes."""

    def step(fleet: str, leases: Leases) -> SweepCount:
        generation = leases.generation()
        if generation is None:
            _known.pop(fleet, None)
            return SweepCount(1)  # the rebuild tells it everything
        now, before = _read(fleet, generation), _known.get(fleet)
        if now == before:
            return SweepCount(1)
        is_same = before is not None and (before.tenants, before.last_deed) == (now.tenants, now.last_deed)
        mirror_fleet(fleet, leases, ports, tenants=not is_same)
        for gone in (before.servers if before else frozenset()) - now.servers:
            leases.forget_server(gone)
        _known[fleet] = now
        return SweepCount(1, 1)

    return sweep_fleets("mirror_registry", ports, step)


def mirror_fleet(fleet: str, leases: Leases, ports: Ports, *, tenants: bool = True) -> None:
    """Tells all pools, servers and (if asked) the rules of tenants."""
    wakes = _tell_tenants(leases) if tenants else ()
    wakes += mirror_registry(leases, fleet=fleet)
    if wakes:
        ports.send_wakes(wakes)


def _tell_tenants(leases: Leases) -> tuple[Wakes, ...]:
    """Page by page, each until the rows say what was told: between the reading and the telling somebody
    may have changed one and told it."""
    wakes: list[Wakes] = []
    last = 0
    while True:
        told: list[TenantSpec] = []
        while (page := [tenant.spec for tenant in _tenants_from(after=last)]) != told:
            wakes += leases.set_tenants([spec for spec in page if spec not in set(told)])
            told = page
        if len(page) < PAGE:
            return tuple(wakes)
        last = int(page[-1].name)


_pools = statements.Read(
    lambda: Pool.objects.filter(fleet=value(Pool, "fleet")).values_list(
        "name", "algorithm", "affinity_patience_seconds"
    )
)
_servers = statements.Read(
    lambda: Server.objects.filter(pool__fleet=value(Pool, "fleet")).values_list(
        "name", "pool_id", "slots", "desired", "host", "healthy"
    )
)
_placed = statements.Read(
    lambda: Placement.objects.filter(server__pool__fleet=value(Pool, "fleet")).values_list(
        "server_id", "model_id"
    )
)

_tenants_from = statements.Read(
    lambda: Tenant.objects.filter(pk__gt=value(Tenant, "id", "after")).order_by("pk")[:PAGE]
)
_last_deed = statements.Read(lambda: AuditEntry.objects.order_by("-pk").values_list("pk", flat=True)[:1])
_tenants = statements.Read(
    lambda: statements.summed(
        Tenant.objects.all(),
        rows=Count("pk"),
        last=Max("pk"),
        weights=Sum("weight"),
        limited=Count("max_running"),
        mixed=Sum(F("pk") * F("weight")),
        limits=Sum(F("pk") * F("max_running")),
        **{band: Sum("pk", filter=Q(highest_band=band)) for band in BANDS},
    )
)


def _read(fleet: str, generation: str) -> _Known:
    servers = _servers(fleet=fleet)
    return _Known(
        generation,
        _last_deed.first(),
        frozenset(
            [
                *(("pool", *row) for row in _pools(fleet=fleet)),
                *(
                    ("server", *row, host, host is not None and healthy is False)
                    for *row, host, healthy in servers
                ),
                *_placed(fleet=fleet),
                *(("pause", one.kind, one.name) for one in fleet_queries.pauses()),
            ]
        ),
        frozenset(row[0] for row in servers),
        tuple(sorted(_tenants.first().items())),
    )
