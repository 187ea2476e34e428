"""A fleet whose Redis time is ahead of the time in rows: the difference is recorded for a rebuild
(`jobs.index_rebuild.fleet_time`)."""

from __future__ import annotations

from gpus.leasing.contract import Leases
from jobs.index_rebuild.fleet_time import note_if_ahead
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_fleets

PERIOD_SECONDS = 5.0


def sweep(ports: Ports) -> SweepCount:
    """repaired: fleets whose time is ahead."""

    def look(fleet: str, leases: Leases) -> SweepCount:
        return SweepCount(1, int(note_if_ahead(fleet, leases, ports)))

    return sweep_fleets("fleet_time", ports, look)
