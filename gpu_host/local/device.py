"""What a model process is pinned to: a GPU, a part of one (MIG), or none; how much memory that has, in MiB,
and who holds it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MIB = 1024 * 1024


class NoSuchDevice(Exception):
    """The message says which there are."""


@dataclass(frozen=True, slots=True)
class Device:
    """uuid: of the GPU or MIG instance; empty for the CPU. label: short, for names."""

    uuid: str
    label: str

    @property
    def is_gpu(self) -> bool:
        return bool(self.uuid)

    def environment(self) -> Mapping[str, str]:
        """What makes a process see this device and no other."""
        return {"CUDA_VISIBLE_DEVICES": self.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


CPU = Device("", "cpu")


def is_uuid(said: str) -> bool:
    """Of a GPU or a MIG instance, or the beginning of one."""
    return said.startswith(("GPU-", "MIG-"))


def choose_device(said: str, uuids: list[str]) -> Device:
    """said: ``none``, an index, or a UUID (or a beginning of one that is unique). uuids: by index, and MIG
    instances after the GPUs; empty for a GPU that does not answer. Raises NoSuchDevice."""
    if said == "none":
        return CPU
    if re.fullmatch(r"\d+", said):
        index = int(said)
        gpus = [uuid for uuid in uuids if not uuid.startswith("MIG-")]
        if index < len(gpus) and gpus[index]:
            return Device(gpus[index], f"gpu{index}")
        why = "does not answer" if index < len(gpus) else "is not there"
        raise NoSuchDevice(f"GPU {said} {why}: {_known(uuids)}")
    found = [uuid for uuid in uuids if uuid and uuid.lower().startswith(said.lower())]
    if len(found) != 1:
        raise NoSuchDevice(f"{said!r} names {len(found)} GPUs: {_known(uuids)}")
    uuid = found[0]
    return Device(uuid, uuid.split("-")[0].lower() + "-" + uuid.split("-")[1][:8])


def _known(uuids: list[str]) -> str:
    if not uuids:
        return "there is no NVIDIA GPU here (use --gpu none)"
    return f"there are {', '.join(uuid or f'{at} (no answer)' for at, uuid in enumerate(uuids))}"


@dataclass(frozen=True, slots=True)
class Memory:
    """own: of our model process and what it started; others: everybody else's. beside: what of `own`
    is held by processes that are not in its session."""

    total: float
    own: float
    others: float
    beside: float = 0.0


class Gauge(Protocol):
    def read(self, session: int | None) -> Memory:
        """session: of our model process, if there is one. Raises OSError if the device can't be read."""
        ...


Also = Callable[[], Collection[int]]


def no_processes() -> Collection[int]:
    return ()


class PortableGauge:
    """Memory of a machine without ``/proc`` (macOS): the resident sizes that `ps` prints. Shared pages count
    once per process. Raises OSError if `ps` does not answer."""

    def read(self, session: int | None) -> Memory:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / MIB
        own = others = 0.0
        for group, resident in _resident():
            if group == session:
                own += resident
            else:
                others += resident
        return Memory(total, own, min(others, max(0.0, total - own)))


def machine_gauge(also: Also = no_processes) -> Gauge:
    """For models that use no GPU. also: see `RamGauge`."""
    return RamGauge(also=also) if Path("/proc/meminfo").exists() else PortableGauge()


class RamGauge:
    """The machine's memory, or the cgroup's where that is less. also: processes that are ours beside the
    session's. proc, cgroup: folders, for tests."""

    def __init__(
        self, proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup"), also: Also = no_processes
    ) -> None:
        self._proc, self._cgroup, self._also = proc, cgroup, also

    def read(self, session: int | None) -> Memory:
        try:
            facts = _meminfo(self._proc)
            total, available = facts["MemTotal"], facts["MemAvailable"]
        except (LookupError, ValueError) as error:
            raise OSError(f"{self._proc}/meminfo says something else than expected: {error!r}") from error
        limit, used = self._cgroup_facts()
        if limit is not None and limit < total:
            total, available = limit, min(available, limit - used)
        within = set(() if session is None else members(session, self._proc))
        beside = sum(held_by(pid, self._proc) for pid in set(self._also()) - within)
        own = sum(held_by(pid, self._proc) for pid in within) + beside
        return Memory(total, own, max(0.0, total - available - own), beside)

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
            state, of_session = after_name[0], int(after_name[3])
        except (OSError, ValueError, IndexError):
            continue  # it ended meanwhile
        if of_session == session and state not in "ZX":
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


def _resident() -> list[tuple[int, float]]:
    """By process: its group, which is its session for what we start; MiB."""
    try:
        said = subprocess.run(
            ["ps", "-A", "-o", "pgid=,rss="], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except subprocess.SubprocessError as error:
        raise OSError(f"ps does not answer: {error}") from error
    rows = (line.split() for line in said.splitlines())
    return [(int(row[0]), int(row[1]) / 1024) for row in rows if len(row) == 2]


def _meminfo(proc: Path) -> dict[str, float]:
    lines = (proc / "meminfo").read_text().splitlines()
    return {name: int(rest.split()[0]) / 1024 for name, _, rest in (line.partition(":") for line in lines)}
