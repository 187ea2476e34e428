"""A driver that hangs: cancels still reach the runs, no job is taken, and the reason is reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_host.local.gpu import LocalGpu, notify_waiters
from gpu_host.local.loaded_models import LocalGpuOptions
from gpu_host.local.nvml import Nvml, VramGauge
from gpu_host.local.orders import Order, Stopped
from gpu_host.local.watchdog import READ_SECONDS, Watchdog
from gpus.errors import GpuBusy, Interrupted
from gpus.runners.base import Abort
from tests.support.fake_nvml import HANGS_SECONDS, Card, FakeNvml
from tests.support.local_bench import MODELS, Going
from tests.support.waiting import wait_for

ANSWER_SECONDS = 1.5
SOON = HANGS_SECONDS / 2
"""Far less than the driver hangs, far more than anything else takes."""


class Box:
    def __init__(self, folder: Path) -> None:
        self.library = FakeNvml(Card("GPU-a"))
        self.nvml = Nvml(self.library, answer_seconds=ANSWER_SECONDS)
        self.now = 1000.0
        self.gpu = LocalGpu(
            [MODELS],
            gauge=VramGauge(self.nvml, "GPU-a"),
            environment={"CUDA_VISIBLE_DEVICES": "", "TEST_FOLDER": str(folder)},
            output_root=folder / "output",
            options=LocalGpuOptions(cancel_seconds=5.0, free_seconds=1.0),
        )
        self.doctor = Watchdog(self.gpu, lambda: self.nvml.read("GPU-a"), clock=lambda: self.now)

    def run(self, model: str, payload: Any = None) -> Any:
        return self.gpu.run(order(model, payload), Abort())

    def look(self) -> None:
        self.now += READ_SECONDS + 1
        self.doctor.step()


def order(model: str, payload: Any = None) -> Order:
    attempt = f"{model}-{time.monotonic_ns()}"
    return Order(attempt, f"job-{attempt}", model, payload, limit_seconds=60.0)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path)
    yield box
    box.library.answers.set()
    box.gpu.stop()


def test_a_cancel_reaches_a_run_while_the_driver_hangs(box: Box, tmp_path: Path):
    running = Going(box.gpu, order("wild", {"do": "waits", "here": str(tmp_path / "here")}))
    wait_for((tmp_path / "here").exists)
    box.library.answers.clear()
    asked = box.library.asked
    waits = Going(box.gpu, order("a"))  # its memory is read with the lock of the GPU held
    wait_for(lambda: box.library.asked > asked)
    began = time.monotonic()
    running.abort.fire()
    with pytest.raises(Interrupted):
        running.end()
    assert box.gpu.stop_run(running.order.attempt) is Stopped.OBEYED
    with pytest.raises(GpuBusy, match="the driver does not answer"):
        waits.end()
    assert time.monotonic() - began < SOON


def test_a_cancel_does_not_wait_for_the_lock():
    lock = threading.Condition()
    woken = threading.Thread(target=lambda: notify_waiters(lock), daemon=True)
    with lock:
        woken.start()
        woken.join(SOON)
        assert not woken.is_alive()
        other = threading.Timer(0.2, lambda: notify_waiters(lock))
        other.start()
        assert lock.wait(SOON), "a wait returns once the lock is free"


def test_the_gpu_reports_the_reason_takes_no_job_and_recovers(box: Box):
    box.run("wild", {"do": "echo"})
    box.look()
    assert box.gpu.sick == ""
    box.library.answers.clear()
    began = time.monotonic()
    box.look()
    assert box.gpu.sick == "the GPU can't be read: the driver does not answer"
    with pytest.raises(GpuBusy, match="does not answer"):
        box.run("wild", {"do": "echo"})
    assert time.monotonic() - began < SOON
    box.library.answers.set()
    wait_for(lambda: box.look() or not box.gpu.sick)
    assert box.run("wild", {"do": "echo"})


def test_housekeeping_does_not_call_a_hanging_driver(box: Box):
    box.run("keeps_context")  # which is unloaded as soon as it is idle
    box.gpu.sick = "the driver does not answer"
    box.gpu.tick()
    assert box.gpu.warm() == ["keeps_context"]
    box.gpu.sick = ""
    box.gpu.tick()
    assert box.gpu.warm() == []


def test_a_driver_that_hangs_from_the_start_is_no_gpu():
    library = FakeNvml(Card("GPU-a"))
    answers = threading.Event()
    library.nvmlInit = lambda: answers.wait(HANGS_SECONDS)  # type: ignore[method-assign]
    began = time.monotonic()
    with pytest.raises(OSError, match="no NVIDIA driver: the driver does not answer"):
        Nvml(library, start_seconds=0.2)
    assert time.monotonic() - began < SOON
    answers.set()
