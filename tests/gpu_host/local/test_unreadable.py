"""A device that can't be read for a moment, a reader that fails: no job pays, and none waits for ever."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gpu_host.local.device import Memory, RamGauge
from gpu_host.local.gpu import LocalGpu
from gpus.errors import GpuBusy, ProcessDied
from gpus.runners.base import Abort
from tests.support.local_bench import MODELS, Bench
from tests.support.waiting import wait_for


class Moody:
    """Fails at these reads (0: the next one), otherwise returns the real value."""

    def __init__(self) -> None:
        self.real, self.fails, self.reads = RamGauge(), range(0), 0

    def read(self, session: int | None) -> Memory:
        self.reads += 1
        if self.reads - 1 in self.fails:
            raise OSError("GPU is lost")
        return self.real.read(session)

    def fail(self, *turns: int) -> None:
        self.reads, self.fails = 0, turns  # type: ignore[assignment]


@pytest.fixture
def moody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Moody:
    assert bench.gpu.release_memory()
    gauge = Moody()
    monkeypatch.setattr(bench.gpu._loaded, "_gauge", gauge)
    return gauge


def test_a_run_that_ends_while_the_device_cannot_be_read_ends(bench: Bench, moody: Moody):
    pid = bench.wild("echo")
    moody.fail(*range(100))
    assert bench.wild("echo") == pid
    moody.fail()
    assert bench.wild("echo") == pid


@pytest.mark.parametrize("turn", [0, 1, 2, 3], ids=["spawn", "plan", "before the load", "after the load"])
def test_a_device_that_cannot_be_read_costs_nothing(bench: Bench, moody: Moody, turn: int):
    moody.fail(turn)
    with pytest.raises(GpuBusy, match="GPU is lost") as raised:
        bench.run("a")
    assert (raised.value.counts, raised.value.suspect) == (False, False)
    assert bench.run("a")["model"] == "a"


def test_a_process_that_cannot_be_made_costs_nothing(bench: Bench, moody: Moody, monkeypatch):
    def full(*arguments: Any, **values: Any) -> Any:
        raise OSError("Cannot allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr("gpu_host.local.process.subprocess.Popen", full)
        with pytest.raises(GpuBusy, match="Cannot allocate"):
            bench.run("a")
    assert bench.run("a")["model"] == "a"


def test_an_unload_while_the_device_cannot_be_read_replaces_the_process(bench: Bench, moody: Moody):
    bench.run("keeps_context")
    session = bench.gpu.session
    moody.fail(*range(1, 1000))
    with pytest.raises(GpuBusy):
        bench.gpu.tick()
    moody.fail()
    assert bench.wild("echo")
    assert bench.gpu.session != session


def test_a_reader_that_breaks_ends_its_process_and_the_run(bench: Bench, monkeypatch):
    here = bench.path()
    going = bench.begin(bench.order("wild", {"do": "waits", "here": str(here)}))
    wait_for(here.exists)
    process: Any = bench.gpu._owner.process

    def broken(frame: Any) -> None:
        raise KeyError("kind")

    monkeypatch.setattr(process, "_on_frame", broken)
    bench.gpu.runs()[0].send({"do": "cancel", "attempt": going.order.attempt})
    with pytest.raises(ProcessDied, match="failed on a frame: KeyError"):
        going.end()
    assert bench.wild("echo")


def test_runs_end_even_if_callbacks_raise(bench: Bench, tmp_path):
    def full(*arguments: Any, **values: Any) -> None:
        raise OSError("No space left on device")

    gpu = LocalGpu(
        [MODELS],
        gauge=RamGauge(),
        environment={},
        output_root=tmp_path,
        on_event=full,
        output=full,
        log_event=full,
    )
    try:
        assert gpu.run(bench.order("wild", {"do": "reports"}), Abort())
        with pytest.raises(ProcessDied):
            gpu.run(bench.order("wild", {"do": "crashes"}), Abort())
        assert gpu.run(bench.order("wild", {"do": "garbage"}), Abort()) == "clean"
    finally:
        gpu.stop()


def test_callbacks_are_called_without_the_lock(bench: Bench, tmp_path):
    free: list[bool] = []
    gpu: LocalGpu

    def look(*arguments: Any, **values: Any) -> None:
        def take() -> None:
            taken = gpu._lock.acquire(timeout=5)
            free.append(taken)
            if taken:
                gpu._lock.release()

        thread = threading.Thread(target=take)
        thread.start()
        thread.join()

    gpu = LocalGpu([MODELS], gauge=RamGauge(), environment={}, output_root=tmp_path, on_event=look)
    try:
        gpu.run(bench.order("wild", {"do": "reports"}), Abort())
        assert free == [True] * 4
    finally:
        gpu.stop()
