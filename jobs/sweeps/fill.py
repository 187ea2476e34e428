"""Free slots and waiting tickets without a pending wake: the wake was lost or never sent.

`gpus/leasing/lua/fill.lua` decides which wakes are missing.
"""

from __future__ import annotations

from gpus.leasing.contract import Leases
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_fleets


def sweep(ports: Ports) -> SweepCount:
    """repaired: wakes sent."""

    def step(fleet: str, leases: Leases) -> SweepCount:
        wakes = leases.fill()
        return SweepCount(len(wakes), ports.send_wakes(wakes) if wakes else 0)

    return sweep_fleets("fill", ports, step)
