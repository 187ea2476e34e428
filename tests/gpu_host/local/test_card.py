"""GPU memory of a model process: the driver's context, that of libraries, and models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_host.local.device import Memory
from gpu_host.local.gpu import LocalGpu
from gpu_host.local.loaded_models import LocalGpuOptions
from tests.support.local_bench import MODELS, Bench, Going
from tests.support.waiting import wait_for

CONTEXT, WEIGHTS = 600.0, 150.0


class Card:
    """A gauge whose memory of our process is set by the test."""

    def __init__(self) -> None:
        self.total, self.others = 2000.0, 100.0
        self.context = self.models = self.more = 0.0
        self.session: int | None = None
        self.gpu: LocalGpu | None = None
        self.events: list[str] = []
        self.logged: list[tuple[str, dict[str, Any]]] = []

    def read(self, session: int | None) -> Memory:
        if session != self.session:  # it is freed with its process
            self.session, self.models, self.more = session, 0.0, 0.0
        own = 0.0 if session is None else self.context + self.models + self.more
        return Memory(self.total, own, self.others)

    def ask(self, frame: Any, said: str, seconds: float) -> Any:
        if frame["do"] == "probe":
            self.read(self.gpu.session)
            self.context = CONTEXT
            return {"why": ""}
        answer = self.real(frame, said, seconds)
        self.models += {"load": WEIGHTS, "unload": -WEIGHTS}[frame["do"]]
        return answer

    def log_event(self, event: str, **fields: Any) -> None:
        if event == "model_process_replaced":
            self.context = 0.0
        self.events.append(event)
        self.logged.append((event, fields))


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    card = Card()
    gpu = LocalGpu(
        [MODELS],
        gauge=card,
        environment={},
        output_root=tmp_path,
        is_gpu=True,
        options=LocalGpuOptions(free_seconds=0.2, free_tolerance_mb=100, library_mb=500, sample_seconds=0.0),
        log_event=card.log_event,
    )
    card.gpu, card.real = gpu, gpu._owner.ask
    monkeypatch.setattr(gpu._owner, "ask", card.ask)
    yield card
    gpu.stop()


def run(card: Card, bench: Bench, model: str, payload: Any = None) -> Any:
    return begin(card, bench, model, payload).end()


def begin(card: Card, bench: Bench, model: str, payload: Any = None) -> Going:
    assert card.gpu is not None
    return Going(card.gpu, bench.order(model, payload))


def test_the_drivers_context_is_no_models_memory(card: Card, bench: Bench):
    run(card, bench, "keeps_context")
    card.gpu.tick()
    assert card.gpu.warm() == []
    assert "model_process_replaced" not in card.events


def test_memory_of_a_running_model_is_no_leak_of_another(card: Card, bench: Bench):
    run(card, bench, "keeps_context")
    gate = bench.path()
    going = begin(card, bench, "large_runs", {"until": str(gate)})
    wait_for(lambda: len(card.gpu.running()) == 1)
    card.more = 600.0
    card.gpu.tick()
    gate.touch()
    going.end()
    card.more = 0.0
    run(card, bench, "wild", {"do": "echo"})
    assert "model_process_replaced" not in card.events


def test_memory_kept_by_libraries_is_allowed_only_once(card: Card, bench: Bench):
    for kept, replaced in ((400.0, False), (400.0, False), (800.0, True)):
        run(card, bench, "keeps_context")
        card.more = kept
        card.gpu.tick()
        assert ("model_process_replaced" in card.events) is replaced


def test_memory_kept_at_a_later_unload_is_a_leak(card: Card, bench: Bench):
    for kept, replaced in ((150.0, False), (300.0, True)):
        run(card, bench, "keeps_context")
        card.more = kept
        card.gpu.tick()
        assert ("model_process_replaced" in card.events) is replaced
    assert [fields for event, fields in card.logged if event == "unload_measured"] == [
        {"models": ["keeps_context"], "residue_mb": 150, "first": True},
        {"models": ["keeps_context"], "residue_mb": 150, "first": False},
    ]
    run(card, bench, "keeps_context")
    card.more = 150.0
    card.gpu.tick()
    assert card.events.count("model_process_replaced") == 1, "in a new process it is the first again"


def test_a_process_that_keeps_memory_is_replaced_for_a_model_that_needs_it(card: Card, bench: Bench):
    run(card, bench, "a")
    session = card.gpu.session
    card.more = 1200.0
    gate = bench.path()
    gate.touch()
    run(card, bench, "large_runs", {"until": str(gate)})
    assert card.gpu.session != session
    assert "model_unloaded" in card.events
