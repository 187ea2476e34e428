"""Peak memory of processes since the last reset (Linux)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from dispatcher_project.web.memory import resident_bytes

_MEGABYTE = 1024 * 1024
_RESET_PEAK = "5"
"""proc(5), /proc/pid/clear_refs."""


def reset_peaks(pids: Mapping[str, int]) -> None:
    """Start a new measurement of these processes."""
    for pid in pids.values():
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)


def peaks_mb(pids: Mapping[str, int]) -> dict[str, int]:
    """Return the peak memory by name; processes that have exited are left out."""
    found = {name: _peak_bytes(pid) for name, pid in pids.items()}
    return {name: round(size / _MEGABYTE) for name, size in found.items() if size}


def _peak_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resident_bytes(pid)
