"""Pinned servers whose worker has stopped or resumed sending heartbeats, or reports that its GPU can't run.

Only that worker can use the server, so without its heartbeat the server is marked unhealthy and gets no jobs.
Its runs are ended by `expired_leases` when their leases expire. Without Redis no server is judged.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog

from foundation.database import statements
from foundation.database.statements import value
from gpus.health.health import record_health
from gpus.health.pinned_servers import health_from_heartbeat
from gpus.leasing.contract import Leases
from gpus.models import Pool, Server
from gpus.protocol import STARTED_HERE, DesiredState
from gpus.registry.index_sync import mirror
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.registry import remove_server
from jobs.models import Attempt
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_fleets, sweep_rows

log = structlog.get_logger(__name__)

_any_pinned = statements.AnyRow(
    lambda: Server.objects.filter(host__isnull=False, pool__fleet=value(Pool, "fleet"))
)

RETIRED_AFTER = timedelta(days=7)
"""Silence after which a server is removed; its worker registers it again if it comes back."""


def sweep(ports: Ports) -> SweepCount:
    """looked: pinned servers. repaired: servers that became healthy or unhealthy, or were removed."""

    def step(fleet: str, leases: Leases) -> SweepCount:
        if not _any_pinned(fleet=fleet):
            return SweepCount()
        pinned = Server.objects.filter(host__isnull=False, pool__fleet=fleet)
        servers = list(pinned.select_related("pool").order_by("name"))
        beats = leases.heartbeats([server.name for server in servers])

        def judge(server: Server) -> bool:
            now = ports.clock.now()
            health = health_from_heartbeat(beats.get(server.name), server, now)
            if health is None:
                return False
            before = server.healthy
            record_health(server, health, now)
            if _may_retire(server, now):
                return _retire(server, ports)
            if server.healthy == before:
                return False
            log.info(
                "pinned_server_health_changed",
                server=server.name,
                healthy=server.healthy,
                why=server.last_error,
            )
            wakes, _ = mirror(ports.leases, server.pool, server)
            ports.send_wakes(wakes)
            return True

        return sweep_rows("silent_workers", servers, judge)

    return sweep_fleets("silent_workers", ports, step)


def _may_retire(server: Server, now: datetime) -> bool:
    """Return True if the server has been silent for `RETIRED_AFTER`, unless an operator switched it off, it
    has a placement that an operator made, or it has a live attempt."""
    return (
        server.healthy is False
        and server.desired == DesiredState.ON
        and server.checked_at is not None
        and now - server.checked_at >= RETIRED_AFTER
        and not server.placements.exclude(endpoint__startswith=f"{STARTED_HERE}://").exists()
        and not Attempt.objects.filter(server=server.name, state__in=Attempt.LIVE).exists()
    )


def _retire(server: Server, ports: Ports) -> bool:
    """Remove the server; False if one of its slots is in quarantine."""
    try:
        removed = remove_server(server.name, by="sweep:silent_workers", leases=ports.leases)
    except RegistryRefused:
        return False
    log.info("silent_server_removed", server=server.name, silent_since=str(server.checked_at))
    return removed
