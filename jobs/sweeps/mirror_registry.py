"""The lease layer knows another registry than the database: a change was made while Redis was away or by
another door (the admin, a shell), or the index is new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

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

AGAIN_SECONDS = 60.0
"""A database that lost its last commits looks as before them, while the index was told of them: so everything
is told again this often, also where nothing changed."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What this process told a fleet last. last_deed: the newest audit entry; what was switched there and
    back since the last look may have reached the lease layer only half. tenants: the rules of those that
    differ from a new tenant's. made_at: of the servers' rows. at: monotonic."""

    generation: str
    last_deed: int | None
    registry: frozenset[tuple[object, ...]]
    tenants: frozenset[tuple[object, ...]]
    made_at: Mapping[str, datetime]
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
_placed = statements.Read(
    lambda: Placement.objects.filter(server__pool__fleet=value(Pool, "fleet")).values_list(
        "server_id", "model_id"
    )
)

_last_deed = statements.Read(lambda: AuditEntry.objects.order_by("-pk").values_list("pk", flat=True)[:1])
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


def _read(fleet: str, generation: str, ports: Ports) -> _Known:
    servers = _servers(fleet=fleet)
    return _Known(
        generation,
        _last_deed.first(),
        frozenset(
            [
                *(("pool", *row) for row in _pools(fleet=fleet)),
                *(
                    ("server", *row, host, host is not None and healthy is False)
                    for *row, host, healthy, _ in servers
                ),
                *_placed(fleet=fleet),
                *(("pause", one.kind, one.name) for one in queries.pauses()),
            ]
        ),
        frozenset(_tenants()),
        {name: made_at for name, *_, made_at in servers},
        ports.clock.monotonic(),
    )


def _forget_removed(fleet: str, leases: Leases, before: _Known | None, ports: Ports) -> None:
    """Forgets servers of the index that have no row, whichever process saw the row last, and those with
    another row than before: registered again, a server is a new one, without strikes. The index is read
    before the rows, so that a server that is registered in between has its row."""
    indexed = leases.servers()
    made_at = {name: at for name, *_, at in _servers(fleet=fleet)}
    known = before.made_at if before else {}
    is_other = {name for name in indexed if known.get(name) not in (None, made_at.get(name))}
    if removed := is_other | (set(indexed) - set(made_at)):
        ports.send_wakes(forget_servers(leases, removed, fleet=fleet))


class MirrorRegistrySweep:
    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def __call__(self, ports: Ports) -> SweepCount:
        """repaired: fleets that were told. Costs a few short reads while nothing changes."""

        def step(fleet: str, leases: Leases) -> SweepCount:
            generation = leases.generation()
            if generation is None:
                self._known.pop(fleet, None)
                return SweepCount(1)  # the rebuild tells it everything
            now, before = _read(fleet, generation, ports), self._known.get(fleet)
            is_old = before is None or not 0 <= now.at - before.at < AGAIN_SECONDS
            if now == before and not is_old:
                return SweepCount(1)
            is_same = before is not None and (before.tenants, before.last_deed) == (
                now.tenants,
                now.last_deed,
            )
            mirror_fleet(fleet, leases, ports, tenants=is_old or not is_same)
            _forget_removed(fleet, leases, before, ports)
            self._known[fleet] = now
            return SweepCount(1, int(now != before))

        return sweep_fleets("mirror_registry", ports, step)
