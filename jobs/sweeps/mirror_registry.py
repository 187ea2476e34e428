"""A registry in Redis that differs from the database: a change was made while Redis was unavailable or
outside the API (the admin, a shell), or the index is new."""

from __future__ import annotations

from dataclasses import dataclass, field

from foundation.database import statements
from foundation.database.statements import value
from gpus.leasing.contract import Leases
from gpus.models import AuditEntry, Placement, Pool, Server
from gpus.protocol import TenantSpec
from gpus.registry import queries
from gpus.registry.index_sync import forget_servers
from jobs.index_rebuild.rebuild import mirror_fleet
from jobs.models import Tenant
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_fleets

REFRESH_SECONDS = 60.0
"""Period of a complete write without any change: a database that lost its last commits looks unchanged, while
Redis still has them."""


@dataclass(frozen=True, slots=True)
class _Registry:
    """The registry that this process last wrote to a fleet's index.

    last_audit_id: the newest audit entry; it reveals a change that was reverted between two runs and may have
    reached Redis only in part. tenants: rules that differ from a new tenant's. at: monotonic seconds.
    """

    generation: str
    last_audit_id: int | None
    registry: frozenset[tuple[object, ...]]
    tenants: frozenset[tuple[object, ...]]
    at: float = field(compare=False)


_pools = statements.Read(
    lambda: Pool.objects.filter(fleet=value(Pool, "fleet")).values_list(
        "name", "algorithm", "affinity_patience_seconds"
    )
)
_servers = statements.Read(
    lambda: Server.objects.filter(pool__fleet=value(Pool, "fleet")).values_list(
        "name", "pool_id", "slots", "desired", "host", "healthy", "created_at"
    )
)
_placements = statements.Read(
    lambda: Placement.objects.filter(server__pool__fleet=value(Pool, "fleet")).values_list(
        "server_id", "model_id"
    )
)

_last_audit_id = statements.Read(lambda: AuditEntry.objects.order_by("-pk").values_list("pk", flat=True)[:1])
_NEW_TENANT = TenantSpec("new")
_tenants = statements.Read(
    lambda: (
        Tenant.objects.exclude(
            weight=_NEW_TENANT.weight,
            highest_band=_NEW_TENANT.highest_band,
            max_running=_NEW_TENANT.max_running,
        )
        .order_by()
        .values_list("pk", "weight", "highest_band", "max_running")
    )
)


def _read(fleet: str, generation: str, ports: Ports) -> _Registry:
    return _Registry(
        generation,
        _last_audit_id.first(),
        frozenset(
            [
                *(("pool", *row) for row in _pools(fleet=fleet)),
                *(
                    ("server", *row, host, host is not None and healthy is False, made_at)
                    for *row, host, healthy, made_at in _servers(fleet=fleet)
                ),
                *_placements(fleet=fleet),
                *(("pause", one.kind, one.name) for one in queries.pauses()),
            ]
        ),
        frozenset(_tenants()),
        ports.clock.monotonic(),
    )


def _forget_removed(fleet: str, leases: Leases, ports: Ports) -> None:
    """Remove servers from the index that have no row. The index is read before the rows, so that a server
    registered in between has its row. A server that was registered again is recognised by
    `lua/configure_server.lua`."""
    indexed = leases.servers()
    if removed := set(indexed) - {name for name, *_ in _servers(fleet=fleet)}:
        ports.send_wakes(forget_servers(leases, removed, fleet=fleet))


class MirrorRegistrySweep:
    """Writes the registry to Redis where it changed. Keeps what it last wrote to each fleet."""

    def __init__(self) -> None:
        self._known: dict[str, _Registry] = {}

    def __call__(self, ports: Ports) -> SweepCount:
        """repaired: fleets whose registry was written. Without changes a run is a few short reads."""

        def step(fleet: str, leases: Leases) -> SweepCount:
            generation = leases.generation()
            if generation is None:
                self._known.pop(fleet, None)
                return SweepCount(1)  # the rebuild writes the whole registry
            now, before = _read(fleet, generation, ports), self._known.get(fleet)
            is_old = before is None or not 0 <= now.at - before.at < REFRESH_SECONDS
            if now == before and not is_old:
                return SweepCount(1)
            is_same = before is not None and (before.tenants, before.last_audit_id) == (
                now.tenants,
                now.last_audit_id,
            )
            mirror_fleet(fleet, leases, ports, tenants=is_old or not is_same)
            _forget_removed(fleet, leases, ports)
            self._known[fleet] = now
            return SweepCount(1, int(now != before))

        return sweep_fleets("mirror_registry", ports, step)
