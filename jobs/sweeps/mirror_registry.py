"""The lease layer knows another registry than the database: a change was made while Redis was away or by
another door (the admin, a shell), or the index is new."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, F, Max, Sum

from gpus import queries as fleet_queries
from gpus.leasing.contract import Leases
from gpus.models import AuditEntry, Placement, Pool, Server
from gpus.services.mirror import mirror_registry
from jobs.models import Tenant
from jobs.services.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_fleets

PAGE = 5000


@dataclass(frozen=True, slots=True)
class _Known:
    """What this process told a fleet last. last_deed: the newest audit entry; what was switched there and
    back since the last look may have reached the lease layer only half. weights: a sum over all tenants, to
    see a change cheaply."""

    generation: str
    last_deed: int | None
    registry: frozenset[tuple[object, ...]]
    servers: frozenset[str]
    weights: tuple[object, ...]


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
        mirror_fleet(fleet, leases, ports, weights=before is None or before.weights != now.weights)
        for gone in (before.servers if before else frozenset()) - now.servers:
            leases.forget_server(gone)
        _known[fleet] = now
        return SweepCount(1, 1)

    return sweep_fleets("mirror_registry", ports, step)


def mirror_fleet(fleet: str, leases: Leases, ports: Ports, *, weights: bool = True) -> None:
    """Tells all pools, servers and (if asked) tenants' weights."""
    if weights:
        tenants = Tenant.objects.order_by("pk").values_list("pk", "weight")
        page = list(tenants[:PAGE])
        while page:
            leases.set_weights({str(pk): weight for pk, weight in page})
            page = list(tenants.filter(pk__gt=page[-1][0])[:PAGE])
    wakes = mirror_registry(leases, fleet=fleet)
    if wakes:
        ports.send_wakes(wakes)


def _read(fleet: str, generation: str) -> _Known:
    pools = Pool.objects.filter(fleet=fleet).values_list("name", "algorithm", "affinity_patience_seconds")
    servers = list(
        Server.objects.filter(pool__fleet=fleet).values_list("name", "pool_id", "slots", "desired", "host")
    )
    blind = Server.objects.filter(pool__fleet=fleet, host__isnull=False, healthy=False)
    placed = Placement.objects.filter(server__pool__fleet=fleet).values_list("server_id", "model_id")
    tenants = Tenant.objects.aggregate(
        Count("pk"), Max("pk"), Sum("weight"), mixed=Sum(F("pk") * F("weight"))
    )
    return _Known(
        generation,
        AuditEntry.objects.aggregate(last=Max("pk"))["last"],
        frozenset(
            [
                *(("pool", *row) for row in pools),
                *(("server", *row) for row in servers),
                *placed,
                *(("blind", name) for name in blind.values_list("name", flat=True)),
                *(("pause", one.kind, one.name) for one in fleet_queries.pauses()),
            ]
        ),
        frozenset(row[0] for row in servers),
        tuple(sorted(tenants.items())),
    )
