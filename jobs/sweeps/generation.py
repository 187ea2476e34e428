"""An incomplete index: Redis was flushed, is new, or failed over. Rebuilds the index, one step per run."""

from __future__ import annotations

from gpus.errors import LeasingUnavailable
from gpus.leasing.contract import Leases
from jobs.index_rebuild.rebuild import Progress, Rebuild
from jobs.operations import index_switch
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_fleets


def is_needed(ports: Ports) -> bool:
    """Return True if a fleet's index is missing and its Redis is available."""

    def is_missing(fleet: str) -> bool:
        try:
            return ports.leases(fleet).generation() is None
        except LeasingUnavailable:
            return False

    return any([is_missing(fleet) for fleet in ports.registry.fleets()])


class GenerationSweep:
    """Rebuilds incomplete indexes. Keeps the unfinished rebuild of each fleet between runs."""

    def __init__(self) -> None:
        self._rebuilds: dict[str, Rebuild] = {}

    def __call__(self, ports: Ports) -> SweepCount:
        """repaired: indexes opened."""

        def step(fleet: str, leases: Leases) -> SweepCount:
            if leases.generation() is not None:
                self._rebuilds.pop(fleet, None)
                return SweepCount(1)
            rebuild = self._rebuilds.get(fleet)
            if rebuild is None:
                rebuild = self._rebuilds[fleet] = Rebuild.of(fleet, leases, ports)
            index_switch.close_older(fleet, ports)  # before ours opens: Redis may have lost the close
            progress = rebuild.step()
            while progress is Progress.WIPING:
                progress = rebuild.step()
            if progress is Progress.BUSY_ELSEWHERE:
                index_switch.reopen(fleet, ports)
            if progress is Progress.OPEN:
                self._rebuilds.pop(fleet, None)
                return SweepCount(1, 1)
            return SweepCount(1, notes=(f"{fleet}: {progress}",))

        return sweep_fleets("generation", ports, step)
