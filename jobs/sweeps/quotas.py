"""Tenants whose GPU-seconds of the day are used up and whose waiting jobs are not held back yet; and those
that have some again, because midnight came or the quota was raised.

What Redis was told is told again every ten seconds while it matters: a pool may be new. An index that is made
anew is told by the rebuild, before the tickets.
"""

from __future__ import annotations

import math

from gpus.leasing.contract import Leases
from jobs.limits.gpu_quotas import exhausted, park_exhausted
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_fleets

PERIOD_SECONDS = 2.0
TELL_AGAIN_SECONDS = 10.0

_told: tuple[list[int], float] = ([], -math.inf)
"""By this process, and when (monotonic)."""


def sweep(ports: Ports) -> SweepCount:
    """looked: tenants held back."""
    global _told
    tenants, monotonic = sorted(exhausted(ports.clock.now())), ports.clock.monotonic()
    if tenants == _told[0] and monotonic - _told[1] < TELL_AGAIN_SECONDS:
        return SweepCount(looked=len(tenants))

    def tell(fleet: str, leases: Leases) -> SweepCount:
        ports.send_wakes(park_exhausted(fleet, leases, tenants))
        return SweepCount()

    count = SweepCount(looked=len(tenants)) + sweep_fleets("quotas", ports, tell)
    if not count.failed and not count.notes:
        _told = (tenants, monotonic)
    return count


def forget() -> None:
    """Tells again at the next run."""
    global _told
    _told = ([], -math.inf)
