"""A process that is killed and does not go: a driver may hold it, and with it the GPU's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_host.local import process
from gpu_host.local.device import members
from gpu_host.local.orders import Stopped
from gpus.errors import GpuBusy, RunTimedOut
from tests.gpu_host.local.conftest import Bench
from tests.support.waiting import wait_for

NOBODY = 2**22 + 1
"""A pid above the largest that Linux gives."""


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Processes that stay whatever is done."""
    pids: list[int] = []
    monkeypatch.setattr(process, "members", lambda session: pids)
    monkeypatch.setattr("gpu_host.local.process.STUCK_SECONDS", 0.2)
    return pids


def test_nothing_begins_before_it_is_gone_and_its_slot_is_not_free(bench: Bench, left: list[int]):
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


def test_what_is_over_and_not_reaped_is_not_there(tmp_path: Path):
    for pid, state in ((10, "D"), (11, "Z")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) {state} 1 1 7 0 -1")
    assert members(7, tmp_path) == [10]
