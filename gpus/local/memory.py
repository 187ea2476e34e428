"""How much memory a device has, and who holds it. MiB."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """own: of our model process and what it started; others: everybody else's."""

    total: float
    own: float
    others: float


class Gauge(Protocol):
    def read(self, session: int | None) -> Memory:
        """session: of our model process, if there is one. Raises OSError if the device can't be read."""
        ...


class RamGauge:
    """The machine's memory, or the cgroup's where that is less. proc, cgroup: folders, for tests."""

    def __init__(self, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._cgroup = proc, cgroup

    def read(self, session: int | None) -> Memory:
        facts = _meminfo(self._proc)
        total, available = facts["MemTotal"], facts["MemAvailable"]
        limit, used = self._cgroup_facts()
        if limit is not None and limit < total:
            total, available = limit, min(available, limit - used)
        own = (
            0.0 if session is None else sum(held_by(pid, self._proc) for pid in members(session, self._proc))
        )
        return Memory(total, own, max(0.0, total - available - own))

    def _cgroup_facts(self) -> tuple[float | None, float]:
        try:
            text = (self._cgroup / "memory.max").read_text().strip()
            if text == "max":
                return None, 0.0
            used = int((self._cgroup / "memory.current").read_text())
            return int(text) / MIB, used / MIB
        except (OSError, ValueError):
            return None, 0.0


def members(session: int, proc: Path = Path("/proc")) -> list[int]:
    """The processes of a session that are not over. Raises OSError where there is no such folder."""
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, UnicodeDecodeError):
            continue  # it ended meanwhile
        if int(after_name[3]) == session and after_name[0] not in "ZX":
            found.append(int(entry.name))
    return found


def held_by(pid: int, proc: Path = Path("/proc")) -> float:
    """Its share of what it maps: pages shared by a fork are not counted twice."""
    try:
        for line in (proc / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except (OSError, ValueError):
        pass  # it ended, or the kernel keeps no sums
    return 0.0


def _meminfo(proc: Path) -> dict[str, float]:
    lines = (proc / "meminfo").read_text().splitlines()
    return {name: int(rest.split()[0]) / 1024 for name, _, rest in (line.partition(":") for line in lines)}
