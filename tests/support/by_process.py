"""The sweeps of a process: one memory for each value of `Ports`, as in life."""

from __future__ import annotations

from jobs.ports import Ports
from jobs.sweeps.base import SweepCount
from jobs.sweeps.registry import Sweeps


class _Processes:
    def __init__(self) -> None:
        self._sweeps: dict[int, tuple[Ports, Sweeps]] = {}

    def of(self, ports: Ports) -> Sweeps:
        return self._sweeps.setdefault(id(ports), (ports, Sweeps()))[1]


_processes = _Processes()


def run_sweep(name: str, ports: Ports) -> SweepCount:
    """One run of this sweep in the process that has these ports."""
    return _processes.of(ports).entries()[name].sweep(ports)
