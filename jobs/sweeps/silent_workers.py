"""Pinned servers whose worker is not heard any more, is heard again, or says that its GPU can't run.

Only that worker can drive its server, so without it the server is no capacity: nothing is started there, and
what ran there is ended by `expired_leases` once its lease runs out. Redis away: nothing is judged.
"""

from __future__ import annotations

import structlog

from gpus.leasing.contract import Leases
from gpus.models import Pool, Server, prepared
from gpus.models.prepared import value
from gpus.services.health import record_health
from gpus.services.mirror import mirror
from gpus.services.pinned import health_by
from jobs.services.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_fleets, sweep_rows

log = structlog.get_logger(__name__)

_any_pinned = prepared.Read(
    lambda: (
        Server.objects.filter(host__isnull=False, pool__fleet=value(Pool, "fleet"))
        .order_by()
        .values_list("pk", flat=True)[:1]
    )
)


def sweep(ports: Ports) -> SweepCount:
    """looked: pinned servers. repaired: those that became, or ceased to be, capacity."""

    def step(fleet: str, leases: Leases) -> SweepCount:
        if not _any_pinned(fleet=fleet):
            return SweepCount()
        pinned = Server.objects.filter(host__isnull=False, pool__fleet=fleet)
        servers = list(pinned.select_related("pool").order_by("name"))
        beats = leases.beats([server.name for server in servers])

        def judge(server: Server) -> bool:
            now = ports.clock.now()
            health = health_by(beats.get(server.name), server, now)
            if health is None:
                return False
            before = server.healthy
            record_health(server, health, now)
            if server.healthy == before:
                return False
            log.info("worker_judged", server=server.name, healthy=server.healthy, why=server.last_error)
            wakes, _ = mirror(ports.leases, server.pool, server)
            ports.send_wakes(wakes)
            return True

        return sweep_rows("silent_workers", servers, judge)

    return sweep_fleets("silent_workers", ports, step)
