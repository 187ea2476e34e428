"""Tenants whose GPU-seconds of the day are used up and whose waiting jobs are not held back yet; and those
that have some again, because midnight came or the quota was raised.

What was written to Redis is written again every ten seconds while it matters: a pool may be new. A new index
gets it from the rebuild, before the tickets.
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
    """Keeps what this process wrote last, and when (monotonic)."""

    def __init__(self) -> None:
        self._written: tuple[list[int], float] = ([], -math.inf)

    def __call__(self, ports: Ports) -> SweepCount:
        """looked: tenants held back."""
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
