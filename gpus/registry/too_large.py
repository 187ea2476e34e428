"""A model that needs more memory than a server's GPU has: it is on that server no more, and its jobs wait for
a larger one."""

from __future__ import annotations

from gpus.leasing.values import Wakes
from gpus.models import Placement, Server
from gpus.registry import queries
from gpus.registry.index_sync import LeasesOf, mirror

_LONGEST_WHY = 500


def mark_too_large(server: str, model: str, why: str, *, leases: LeasesOf) -> tuple[Wakes, ...]:
    """Note it for the process that drives the server now; the next one of the server tries again.

    why: the message, with both numbers. Returns the wakes for the caller to send.
    """
    row = Server.objects.select_related("pool").filter(name=server).first()
    if row is None:
        return ()
    Placement.objects.filter(server=row, model=model).update(
        too_large=why[:_LONGEST_WHY] or "too large", too_large_boot=row.boot_id
    )
    queries.forget()
    wakes, _ = mirror(leases, row.pool, row)
    return wakes
