"""A killed process that does not exit: a driver may block it, and with it the GPU's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_host.local import process
from gpu_host.local.device import session_pids
from gpu_host.local.orders import Stopped
from gpus.errors import GpuBusy, RunTimedOut
from tests.support.local_bench import Bench
from tests.support.waiting import wait_for

NOBODY = 2**22 + 1
"""A pid above the largest that Linux gives."""


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Processes that always stay."""
    pids: list[int] = []
    monkeypatch.setattr(process, "session_pids", lambda session: pids)
    monkeypatch.setattr("gpu_host.local.process.STUCK_SECONDS", 0.2)
    return pids


def test_no_run_begins_and_no_slot_is_free_before_the_process_has_exited(bench: Bench, left: list[int]):
    here = bench.path()
    going = bench.begin(bench.order("wild", {"do": "hangs", "here": str(here)}))
    wait_for(here.exists)
    session = bench.gpu.session
    left.append(NOBODY)
    try:
        assert bench.gpu.stop_run(going.order.attempt) is Stopped.NOT_GONE
        assert [order.attempt for order in bench.gpu.running()] == [going.order.attempt]
        with pytest.raises(GpuBusy, match="not gone"):
            bench.wild("echo")
        assert bench.gpu.session == session
    finally:
        left.clear()
    wait_for(lambda: bench.gpu.session is None)
    assert bench.gpu.running() == []
    assert bench.wild("echo")


def test_a_run_past_its_limit_in_a_process_that_stays_is_suspect(bench: Bench, left: list[int]):
    bench.wild("echo")
    left.append(NOBODY)
    try:
        with pytest.raises(RunTimedOut) as raised:
            bench.run("wild", {"do": "hangs"}, limit_seconds=0.2)
        assert raised.value.suspect
    finally:
        left.clear()
    wait_for(lambda: bench.gpu.session is None)


def test_zombies_do_not_count(tmp_path: Path):
    for pid, state in ((10, "D"), (11, "Z")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) {state} 1 1 7 0 -1")
    assert session_pids(7, tmp_path) == [10]
