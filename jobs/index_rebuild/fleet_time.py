"""Stores a fleet's time while it is ahead of the clock: its fences are ahead, too, and a rebuild has to
exceed them.

GPU servers refuse fences below the highest one that they have seen. If Redis' clock was ahead, was corrected,
and Redis then lost its data, a rebuild from the times of attempts alone would begin below
(docs/adr/0034-record-the-fleet-clock-lead.md).
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
"""A smaller lead is within the margin that a rebuild adds to the latest start (call.lua: MARGIN_US)."""

_seen = statements.Read(
    lambda: (
        FleetIndex.objects.filter(fleet=value(FleetIndex, "fleet"))
        .exclude(time_us=None)
        .values_list("time_us", "time_seen_at")
    )
)


def note_if_ahead(fleet: str, leases: Leases, ports: Ports) -> bool:
    """Store the fleet's time if it is ahead of the clock, and delete it if it no longer is. Has no effect
    while this process is still comparing clocks. Returns True if it is ahead. Raises LeasingUnavailable."""
    time_us = None if ports.clock_watch.is_learning() else leases.fleet_time_us()
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
    """Return the least that the fleet's time is now, microseconds since the epoch; 0 if it was not stored as
    ahead."""
    found = _seen.first(fleet=fleet)
    if found is None:
        return 0
    time_us, seen_at = found
    return int(time_us) + max(0, int((now - seen_at).total_seconds() * 1e6))
