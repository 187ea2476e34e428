"""CPU use of a session's processes, of real ones."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_host.local.telemetry import ProcessMeter

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc of Linux")
BUSY, IDLE = "while True: pass", "import time; time.sleep(600)"


def percent_of(program: str, enough: Callable[[float], bool]) -> float:
    """Return the first reading that is high enough, or after a while the last one."""
    process = subprocess.Popen([sys.executable, "-S", "-c", program], start_new_session=True)
    try:
        meter = ProcessMeter(lambda: process.pid)
        assert meter.read() is None, "between two readings"
        found, until = -1.0, time.monotonic() + 20.0
        while not enough(found) and time.monotonic() < until:
            time.sleep(0.2)
            found = meter.read() or 0.0
        return found
    finally:
        process.kill()
        process.wait()


def test_a_computing_process_is_busy_and_a_waiting_one_is_not() -> None:
    assert percent_of(BUSY, lambda found: found > 5.0) > 5.0
    assert percent_of(IDLE, lambda found: 0.0 <= found < 1.0) < 1.0


def test_a_new_session_restarts_the_measurement() -> None:
    sessions: list[int | None] = [1, 2, None, 2]
    meter = ProcessMeter(lambda: sessions.pop(0))
    assert [meter.read() for _ in range(4)] == [None] * 4


def test_without_proc_the_cpu_use_is_unknown(tmp_path: Path) -> None:
    meter = ProcessMeter(lambda: 1, proc=tmp_path / "gone")
    assert [meter.read(), meter.read()] == [None, None]
