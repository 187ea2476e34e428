"""Copies a fleet's registry and the rules of tenants from the database into its index."""

from __future__ import annotations

from foundation.database import statements
from foundation.database.statements import value
from gpus.leasing.contract import Leases
from gpus.leasing.values import Wakes
from gpus.protocol import TenantSpec
from gpus.registry.index_sync import mirror_registry
from jobs.models import Tenant
from jobs.ports import Ports

PAGE = 5000

_tenants_from = statements.Read(
    lambda: Tenant.objects.filter(pk__gt=value(Tenant, "id", "after")).order_by("pk")[:PAGE]
)


def mirror_fleet(fleet: str, leases: Leases, ports: Ports, *, tenants: bool = True) -> None:
    """Tells all pools, servers and (if asked) the rules of tenants."""
    wakes = _write_tenants(leases) if tenants else ()
    wakes += mirror_registry(leases, fleet=fleet)
    if wakes:
        ports.send_wakes(wakes)


def _write_tenants(leases: Leases) -> tuple[Wakes, ...]:
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
