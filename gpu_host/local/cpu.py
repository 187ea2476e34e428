"""How busy a model process is on the CPU: on a worker without a GPU the only sign that a silent run works."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpu_host.local.memory import members


class ProcessMeter:
    """Percent of one core between two readings, of all processes of a session. Linux; elsewhere None.

    session: as `LocalGpu.session` says at each reading.
    """

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
        """None: not known, at the first reading of a session among others."""
        session, now = self._session(), self._clock()
        if session is None:
            self._before = None
            return None
        try:
            spent = {
                pid: seconds
                for pid in members(session, self._proc)
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
            # its own and that of its children that ended, in user mode and in the kernel
            return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
        return None
