"""Tenants whose GPU-seconds of the day are used up and whose waiting jobs are not held back yet; and those
that have some again, because midnight came or the quota was raised.

All of them are told each time, so a Redis that lost its index, or a pool that is new, is told too.
"""

from __future__ import annotations

from gpus.leasing.contract import Leases
from jobs.services.ports import Ports
from jobs.services.quotas import exhausted, park_exhausted
from jobs.sweeps.base import SweepCount, sweep_fleets

PERIOD_SECONDS = 2.0


def sweep(ports: Ports) -> SweepCount:
    """looked: tenants held back, per fleet."""
    tenants = sorted(exhausted(ports.clock.now()))

    def tell(fleet: str, leases: Leases) -> SweepCount:
        ports.send_wakes(park_exhausted(fleet, leases, tenants))
        return SweepCount(looked=len(tenants))

    return sweep_fleets("quotas", ports, tell)
