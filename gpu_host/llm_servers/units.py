"""Whose memory a systemd unit's is: the processes of its control group."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Collection, Sequence
from pathlib import Path

ASK_AGAIN_SECONDS = 2.0


class UnitProcesses:
    """Called, it names the processes of these units that run now. cgroups: the folder, for tests."""

    def __init__(self, units: Sequence[str], cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._units, self._cgroups = tuple(units), cgroups
        self._paths: dict[str, Path] = {}
        self._asked_at: dict[str, float] = {}

    def __call__(self) -> Collection[int]:
        return {pid for unit in self._units for pid in self._of(unit)}

    def _of(self, unit: str) -> list[int]:
        path = self._paths.get(unit)
        if path is None or not path.exists():
            path = self._find(unit)
        if path is None:
            return []
        found = []
        for file in path.rglob("cgroup.procs"):
            try:
                found += [int(line) for line in file.read_text().split()]
            except (OSError, ValueError):
                continue  # it ended meanwhile
        return found

    def _find(self, unit: str) -> Path | None:
        now = time.monotonic()
        if now - self._asked_at.get(unit, -1e9) < ASK_AGAIN_SECONDS:
            return None
        self._asked_at[unit] = now
        command = ["systemctl", "show", "--property=ControlGroup", "--value", unit]
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return None
        group = said.strip().lstrip("/")
        if not group:
            return None
        self._paths[unit] = self._cgroups / group
        return self._paths[unit]
