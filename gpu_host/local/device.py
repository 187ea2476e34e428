"""The device of a model process: a GPU, a part of one (MIG), or none; and gauges of its memory, in MiB."""

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
    """The message names the devices there are."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, a MIG instance or the CPU. uuid: of the GPU or MIG instance; empty for the CPU. label: short,
    for names."""

    uuid: str
    label: str

    @property
    def is_gpu(self) -> bool:
        return bool(self.uuid)

    def environment(self) -> Mapping[str, str]:
        """Return the variables that make a process see only this device."""
        return {"CUDA_VISIBLE_DEVICES": self.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


CPU = Device("", "cpu")


def is_uuid(said: str) -> bool:
    """Return True for the UUID of a GPU or a MIG instance, or the beginning of one."""
    return said.startswith(("GPU-", "MIG-"))


def choose_device(said: str, uuids: list[str]) -> Device:
    """Return the device that `said` names. Raises NoSuchDevice.

    said: ``none``, an index, or a UUID (or a unique beginning of one). uuids: by index, with MIG instances
    after the GPUs; empty for a GPU that does not answer."""
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
    """Memory of a device, MiB. own: of our model process and its descendants; others: of all other processes.
    outside_session: the part of `own` in processes outside its session."""

    total: float
    own: float
    others: float
    outside_session: float = 0.0


class Gauge(Protocol):
    """Reads the memory of a device."""

    def read(self, session: int | None) -> Memory:
        """Return the current memory. session: of our model process, or None. Raises OSError if the device
        can't be read."""
        ...


ExtraProcesses = Callable[[], Collection[int]]


def no_processes() -> Collection[int]:
    return ()


class PortableGauge:
    """Memory of a machine without ``/proc`` (macOS): the resident sizes that `ps` prints.

    Shared pages count once per process. Raises OSError if `ps` does not answer."""

    def read(self, session: int | None) -> Memory:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / MIB
        own = others = 0.0
        for group, resident in _resident():
            if group == session:
                own += resident
            else:
                others += resident
        return Memory(total, own, min(others, max(0.0, total - own)))


def machine_gauge(extra: ExtraProcesses = no_processes) -> Gauge:
    """Return the gauge for models that use no GPU. extra: see `RamGauge`."""
    return RamGauge(extra=extra) if Path("/proc/meminfo").exists() else PortableGauge()


class RamGauge:
    """The machine's memory, or that of the cgroup if its limit is lower.

    extra: processes that count as ours beside those of the session. proc, cgroup: folders, for tests."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cgroup: Path = Path("/sys/fs/cgroup"),
        extra: ExtraProcesses = no_processes,
    ) -> None:
        self._proc, self._cgroup, self._extra = proc, cgroup, extra

    def read(self, session: int | None) -> Memory:
        """See `Gauge.read`."""
        try:
            facts = _meminfo(self._proc)
            total, available = facts["MemTotal"], facts["MemAvailable"]
        except (LookupError, ValueError) as error:
            raise OSError(f"{self._proc}/meminfo has an unexpected format: {error!r}") from error
        limit, used = self._cgroup_facts()
        if limit is not None and limit < total:
            total, available = limit, min(available, limit - used)
        within = set(() if session is None else session_pids(session, self._proc))
        outside_session = sum(pss_mb(pid, self._proc) for pid in set(self._extra()) - within)
        own = sum(pss_mb(pid, self._proc) for pid in within) + outside_session
        return Memory(total, own, max(0.0, total - available - own), outside_session)

    def _cgroup_facts(self) -> tuple[float | None, float]:
        try:
            text = (self._cgroup / "memory.max").read_text().strip()
            if text == "max":
                return None, 0.0
            used = int((self._cgroup / "memory.current").read_text())
            return int(text) / MIB, used / MIB
        except (OSError, ValueError):
            return None, 0.0


def session_pids(session: int, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes of a session, without zombies. Raises OSError if there is no such folder."""
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            state, of_session = after_name[0], int(after_name[3])
        except (OSError, ValueError, IndexError):
            continue  # the process ended meanwhile
        if of_session == session and state not in "ZX":
            found.append(int(entry.name))
    return found


def pss_mb(pid: int, proc: Path = Path("/proc")) -> float:
    """Return a process' proportional set size in MiB: pages shared by a fork are not counted twice."""
    try:
        for line in (proc / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except (OSError, ValueError):
        pass  # the process ended, or the kernel has no smaps_rollup
    return 0.0


def _resident() -> list[tuple[int, float]]:
    """Return (process group, MiB) per process; for processes that we start the group is the session."""
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
