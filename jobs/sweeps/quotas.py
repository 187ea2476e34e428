"""Tenants that have used up their daily GPU-seconds and are not parked in Redis yet, and tenants whose quota
is available again (a new UTC day, or a raised quota).

The list is written again every 10 s, because a pool may be new. For a new index, the rebuild writes it before
the tickets. `gpus/leasing/lua/set_paused_tenants.lua` parks the tenants.
"""

from __future__ import annotations

import math

from gpus.leasing.contract import Leases
from jobs.limits.gpu_seconds import exhausted, park_exhausted
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_fleets

PERIOD_SECONDS = 2.0
WRITE_AGAIN_SECONDS = 10.0


class QuotasSweep:
    """Parks exhausted tenants. Keeps the list that this process last wrote, and when (monotonic seconds)."""

    def __init__(self) -> None:
        self._written: tuple[list[int], float] = ([], -math.inf)

    def __call__(self, ports: Ports) -> SweepCount:
        """looked: tenants without quota."""
        tenants, monotonic = sorted(exhausted(ports.clock.now())), ports.clock.monotonic()
        if tenants == self._written[0] and monotonic - self._written[1] < WRITE_AGAIN_SECONDS:
            return SweepCount(looked=len(tenants))

        def write(fleet: str, leases: Leases) -> SweepCount:
            ports.send_wakes(park_exhausted(fleet, leases, tenants))
            return SweepCount()

        count = SweepCount(looked=len(tenants)) + sweep_fleets("quotas", ports, write)
        if not count.failed and not count.notes:
            self._written = (tenants, monotonic)
        return count
