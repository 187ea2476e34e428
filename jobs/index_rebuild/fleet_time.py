"""A fleet's time is ahead of the time that rows go by: its fences are too, and rows don't tell.

GPU servers refuse fences below the highest one that they have seen. A rebuild that knew rows only would begin
below, where Redis' clock was ahead, was set right, and Redis lost everything
(docs/adr/0034-how-far-fences-are.md).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from foundation.database import statements
from foundation.database.statements import value
from gpus.leasing.contract import Leases
from gpus.models import FleetIndex
from jobs.ports import Ports

AHEAD_SECONDS = 2.0
"""Less is within what a rebuild adds to the latest start (call.lua: MARGIN_US)."""

_seen = statements.Read(
    lambda: (
        FleetIndex.objects.filter(fleet=value(FleetIndex, "fleet"))
        .exclude(time_us=None)
        .values_list("time_us", "time_seen_at")
    )
)


def note(fleet: str, leases: Leases, ports: Ports) -> bool:
    """Writes down the fleet's time where it is ahead of that of rows, unless this process is new and does not
    know the latter yet. Raises LeasingUnavailable."""
    time_us = None if ports.clocks.is_learning() else leases.fleet_time_us()
    if time_us is None:
        return False
    now = ports.clock.now()
    is_ahead = time_us / 1e6 - now.timestamp() > AHEAD_SECONDS
    if not is_ahead and _seen.first(fleet=fleet) is None:
        return False
    seen: dict[str, Any] = {
        "time_us": time_us if is_ahead else None,
        "time_seen_at": now if is_ahead else None,
    }
    FleetIndex.objects.update_or_create(fleet=fleet, defaults=seen)
    return is_ahead


def least_time_us(fleet: str, now: datetime) -> int:
    """What the fleet's time is by now at least, if it was seen ahead; 0 if it was not."""
    found = _seen.first(fleet=fleet)
    if found is None:
        return 0
    time_us, seen_at = found
    return int(time_us) + max(0, int((now - seen_at).total_seconds() * 1e6))
