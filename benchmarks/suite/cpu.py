"""CPU time of processes and their descendants, from /proc (Linux)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable

_CPU_CLOCK = 2
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def cpu_seconds(roots: Iterable[int]) -> float:
    """Return user and system time of these processes, their descendants, and descendants that were reaped.

    The sum only grows, so that two readings give the time spent in between."""
    return sum(_spent(pid) for pid in tree(roots))


def running_cpu_seconds(roots: Iterable[int]) -> float:
    """Return the CPU time of running processes in nanosecond resolution; `/proc` counts in hundredths of a
    second.

    Processes that exited meanwhile are missing, so it is for processes that start no others."""
    return sum(map(_on_its_clock, tree(roots)))


def tree(roots: Iterable[int]) -> set[int]:
    """Return the processes and their descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: set[int] = set()
    left = list(roots)
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, ())
    return found


def _spent(pid: int) -> float:
    fields = _stat(pid)
    return sum(int(ticks) for ticks in fields[11:15]) / _TICKS if fields else 0.0


def _on_its_clock(pid: int) -> float:
    """The id of a process' CPU clock is computed as in clock_getcpuclockid(3)."""
    with contextlib.suppress(OSError):
        return time.clock_gettime((~pid << 3) | _CPU_CLOCK)
    return 0.0


def _stat(pid: int) -> list[str]:
    """Return the fields after the name, starting with the state; empty if the process is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
    return []
