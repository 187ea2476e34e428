"""Small kernels test whether a GPU computes: in the process of the models first, then in a new one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_host.local.device import RamGauge
from gpu_host.local.gpu import LocalGpu
from gpu_host.local.process import Overdue
from gpus.errors import GpuBusy
from gpus.runners.base import Abort
from tests.support.local_bench import MODELS, Bench, Going
from tests.support.waiting import wait_for


class Card:
    """The results of kernels in turn; the last one is repeated."""

    def __init__(self, gpu: LocalGpu) -> None:
        self.answers: list[str] = [""]
        self.asked = 0
        self._ask = gpu._owner.ask

    def ask(self, frame: Any, said: str, seconds: float) -> Any:
        if frame["do"] != "probe":
            return self._ask(frame, said, seconds)
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == "hangs":
            raise Overdue("no answer")
        return {"said": "probed", "why": answer}


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[LocalGpu]:
    gpu = LocalGpu([MODELS], gauge=RamGauge(), environment={}, output_root=tmp_path, is_gpu=True)
    yield gpu
    gpu.stop()


@pytest.fixture
def card(gpu: LocalGpu, monkeypatch: pytest.MonkeyPatch) -> Card:
    card = Card(gpu)
    monkeypatch.setattr(gpu._owner, "ask", card.ask)
    return card


def test_each_new_process_runs_a_kernel_before_its_memory_is_measured(gpu: LocalGpu, card: Card, monkeypatch):
    asked_then: list[int] = []
    begin = gpu._loaded.begin
    monkeypatch.setattr(gpu._loaded, "begin", lambda: (asked_then.append(card.asked), begin()))
    gpu.start()
    gpu.stop()
    gpu.start()
    assert asked_then == [1, 2]


@pytest.mark.parametrize("answer", ["CUDA error 719", "hangs"])
def test_a_process_that_fails_is_replaced_and_the_gpu_is_healthy(gpu: LocalGpu, card: Card, answer: str):
    gpu.start()
    session = gpu.session
    card.answers = [answer, ""]
    assert gpu.probe() == ""
    assert gpu.session not in (session, None)
    assert not gpu.sick


def test_a_gpu_that_fails_in_a_new_process_too_is_sick_until_one_computes(
    gpu: LocalGpu, card: Card, bench: Bench
):
    gpu.start()
    card.answers = ["CUDA error 719"]
    assert "719" in (gpu.probe() or "")
    assert gpu.session is None
    with pytest.raises(GpuBusy, match="719"):
        gpu.run(bench.order("a"), Abort())
    gpu.release_memory()
    assert gpu.probe() is None, "switched off: nothing is spawned"
    gpu.tick()
    card.answers = [""]
    assert gpu.probe() == ""
    assert gpu.session is not None


def test_a_gpu_that_is_sick_at_the_start_is_registered_with_the_reason(gpu: LocalGpu, card: Card):
    card.answers = ["CUDA error 719"]
    assert "a" in gpu.start()
    assert "719" in gpu.sick


def test_a_busy_gpu_is_not_judged(gpu: LocalGpu, card: Card, bench: Bench):
    gpu.start()
    gate, here = bench.path(), bench.path()
    going = Going(gpu, bench.order("twice", {"here": str(here), "until": str(gate)}))
    wait_for(here.exists)
    card.answers = ["CUDA error 719"]
    assert gpu.probe() is None
    gate.touch()
    going.end()
