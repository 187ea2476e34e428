"""The memory of a GPU, as a pinned worker measures it."""

from __future__ import annotations

from gpu_host.local.memory import Also, Gauge, Memory, PortableGauge, held_by, members, no_processes
from gpu_host.local.nvml import Nvml


class VramGauge(Gauge):
    """The memory of a GPU, whoever holds it. In a container the driver may not name our processes, and some
    drivers name them without their memory: then what was held before our first process is others'."""

    def __init__(self, nvml: Nvml, uuid: str, also: Also = no_processes) -> None:
        """also: processes that are ours beside the session's."""
        self._nvml, self._uuid, self._also = nvml, uuid, also
        self._before = nvml.read(uuid).used_mb

    def read(self, session: int | None) -> Memory:
        reading = self._nvml.read(self._uuid)
        also, within = set(self._also()), set(() if session is None else members(session))
        ours = also | within
        named = {pid: held for pid, held in reading.processes.items() if pid in ours and held is not None}
        own = sum(named.values())
        untold = any(reading.processes.get(pid, 0.0) is None for pid in ours)
        if session is not None and (untold or not named):
            own = max(own, reading.used_mb - self._before)
        beside = sum(held for pid, held in named.items() if pid not in within)
        return Memory(reading.total_mb, own, max(0.0, reading.used_mb - own), beside)


def ram_of(session: int | None) -> float:
    """MiB of main memory that a model process holds."""
    if session is None:
        return 0.0
    try:
        return sum(held_by(pid) for pid in members(session))
    except OSError:  # no /proc here
        return PortableGauge().read(session).own
