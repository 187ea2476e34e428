"""Telemetry of a pinned worker: its GPU if there is one, the machine, and CPU use of the model process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_host.local.device import session_pids
from gpu_host.local.nvml import GpuReading

Reading = dict[str, Any]


class MachineMeter:
    """CPU use between two readings, and memory now. Linux; elsewhere the readings hold only the number of
    CPUs."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._before = self._ticks()

    def read(self) -> Reading:
        """Return cpus, cpu_percent, ram_total_mb and ram_used_mb, as far as known."""
        now, before = self._ticks(), self._before
        self._before = now
        reading: Reading = {"cpus": os.cpu_count() or 1}
        if now is not None and before is not None and now[1] > before[1]:
            reading["cpu_percent"] = round(100.0 * (now[0] - before[0]) / (now[1] - before[1]), 1)
        try:
            lines = (self._proc / "meminfo").read_text().splitlines()
        except OSError:
            return reading
        facts = {
            name: int(rest.split()[0]) // 1024 for name, _, rest in (line.partition(":") for line in lines)
        }
        used = facts["MemTotal"] - facts["MemAvailable"]
        return reading | {"ram_total_mb": facts["MemTotal"], "ram_used_mb": used}

    def _ticks(self) -> tuple[int, int] | None:
        """Return busy and all CPU ticks since the machine started."""
        try:
            numbers = [int(part) for part in (self._proc / "stat").read_text().split("\n")[0].split()[1:9]]
        except (OSError, ValueError):
            return None
        return sum(numbers) - numbers[3] - numbers[4], sum(numbers)


def measure(
    machine: MachineMeter,
    gpu: Callable[[], GpuReading] | None,
    *,
    warm: list[str],
    ram_mb: float,
    now: Callable[[], float] = time.time,
) -> Reading:
    """Return one reading of the machine, the models and the GPU, as JSON values.

    gpu: reads the GPU; None without one; if it fails, `gpu_error` has the reason. warm: loaded models.
    ram_mb: main memory of the model process. now: returns Unix seconds."""
    found: Reading = {"at": round(now(), 1), "warm": warm, "models_ram_mb": round(ram_mb), **machine.read()}
    if gpu is None:
        return found
    try:
        reading = asdict(gpu())
    except OSError as error:
        return found | {"gpu_error": str(error)}
    for counted in ("processes", "xids"):  # JSON keys are strings
        reading[counted] = {str(key): value for key, value in reading[counted].items()}
    return found | {"gpu": reading}


class ProcessMeter:
    """CPU use of all processes of a session between two readings, in percent of one core.

    On a worker without a GPU it is the only sign that a silent run works. Linux; elsewhere None. session:
    returns the session, as `LocalGpu.session`."""

    def __init__(
        self,
        session: Callable[[], int | None],
        *,
        clock: Callable[[], float] = time.monotonic,
        proc: Path = Path("/proc"),
    ) -> None:
        self._session, self._clock, self._proc = session, clock, proc
        self._before: tuple[int, float, dict[int, float]] | None = None

    def read(self) -> float | None:
        """Return percent of one core; None if unknown, as at the first reading of a session."""
        session, now = self._session(), self._clock()
        if session is None:
            self._before = None
            return None
        try:
            spent = {
                pid: seconds
                for pid in session_pids(session, self._proc)
                if (seconds := self._seconds(pid)) is not None
            }
        except OSError:  # no /proc here
            return None
        before, self._before = self._before, (session, now, spent)
        if before is None or before[0] != session or now <= before[1]:
            return None
        used = sum(max(0.0, seconds - before[2].get(pid, 0.0)) for pid, seconds in spent.items())
        return 100.0 * used / (now - before[1])

    def _seconds(self, pid: int) -> float | None:
        with suppress(OSError, ValueError, IndexError):
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            # its own time and that of its reaped children, user and system
            return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
        return None
