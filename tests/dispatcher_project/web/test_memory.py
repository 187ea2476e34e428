"""Freed memory goes back to the operating system, in a real process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dispatcher_project.web import memory
from dispatcher_project.web.protocol import WebLimits
from tests.support.servers.serving import serving
from tests.support.waiting import wait_for

_FILL_FREE_AND_TICK = """
import asyncio

from dispatcher_project.web import memory

memory.TRIM_SECONDS = 0.0
memory.TRIM_ABOVE_BYTES = {above}


async def main():
    blocks = [bytearray(b"x" * 100_000) for _ in range(1000)]
    pinned = blocks.pop()  # the end of the heap stays in use, so glibc returns nothing below it
    blocks.clear()
    kept = memory.resident_bytes()
    memory.HeapTrimmer().tick()
    await asyncio.get_running_loop().shutdown_default_executor()
    print(kept - memory.resident_bytes(), len(pinned))


asyncio.run(main())
"""


def _returned_bytes(above: int) -> int:
    script = _FILL_FREE_AND_TICK.format(above=above)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has malloc_trim")
def test_a_large_process_returns_freed_memory() -> None:
    assert _returned_bytes(above=0) > 50_000_000


def test_a_small_process_is_not_trimmed() -> None:
    assert _returned_bytes(above=1 << 40) < 10_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has malloc_trim")
def test_the_running_server_trims_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "TRIM_SECONDS", 0.0)
    monkeypatch.setattr(memory, "TRIM_ABOVE_BYTES", 0)
    with serving(WebLimits()):
        blocks = [bytearray(b"x" * 100_000) for _ in range(1000)]
        full, pinned = memory.resident_bytes(), blocks.pop()
        blocks.clear()
        wait_for(lambda: full - memory.resident_bytes() > 50_000_000, seconds=30)
        assert pinned
