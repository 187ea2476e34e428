"""Heartbeats of a pinned worker continue whatever else hangs."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dispatcher_project.celery_transport import pinned_watch
from dispatcher_project.celery_transport.pinned_watch import PinnedWatch
from gpu_host.local.device import CPU, Device, RamGauge
from gpu_host.local.gpu import LocalGpu
from gpu_host.local.nvml import Nvml
from gpus.health.pinned_servers import GONE_SECONDS
from tests.support.fake_nvml import Card, FakeNvml
from tests.support.waiting import wait_for


class Leases:
    def __init__(self) -> None:
        self.beats: list[dict[str, Any]] = []

    def record_heartbeat(self, server: str, report: dict[str, Any], telemetry: Any = None) -> None:
        self.beats.append(report)


class Ports:
    def __init__(self) -> None:
        self.all = Leases()

    def leases(self, fleet: str) -> Leases:
        return self.all


@pytest.fixture
def gpu(tmp_path) -> LocalGpu:
    return LocalGpu(["none"], gauge=RamGauge(), environment={}, output_root=tmp_path)


@pytest.fixture
def watch(gpu: LocalGpu) -> PinnedWatch:
    ports: Any = Ports()
    return PinnedWatch(gpu, server="box", host="box.1", fleet="main", device=CPU, nvml=None, ports=ports)


def beats(watch: PinnedWatch) -> list[dict[str, Any]]:
    ports: Any = watch._ports
    return ports.all.beats


def test_heartbeats_continue_while_the_gpus_lock_is_held(watch: PinnedWatch, gpu: LocalGpu):
    with gpu._lock:
        thread = threading.Thread(target=watch.beat, daemon=True)
        thread.start()
        thread.join(10)
        assert len(beats(watch)) == 1


def test_loaded_models_are_reported_while_the_gpus_lock_is_held(gpu: LocalGpu):
    results: list[list[str]] = []
    with gpu._lock:
        thread = threading.Thread(target=lambda: results.append(gpu.ready()), daemon=True)
        thread.start()
        thread.join(10)
        assert results == [[]]


def test_a_heartbeat_uses_the_last_reading_and_does_not_read_the_driver(
    watch: PinnedWatch, monkeypatch: pytest.MonkeyPatch
):
    watch.measure()

    def hangs(*arguments: Any, **values: Any) -> Any:
        raise AssertionError("asked the driver")

    monkeypatch.setattr(pinned_watch, "measure", hangs)
    monkeypatch.setattr(pinned_watch, "ram_of", hangs)
    watch.beat()
    assert "at" in beats(watch)[0]["telemetry"]
    watch._measured_at -= GONE_SECONDS + 1
    watch.beat()
    assert beats(watch)[1]["telemetry"] is None, "too old to be shown as what is"


def test_heartbeats_report_a_hanging_driver_before_the_watchdog_does(
    gpu: LocalGpu, monkeypatch: pytest.MonkeyPatch
):
    library = FakeNvml(Card("GPU-a"))
    nvml = Nvml(library, answer_seconds=30.0)
    ports: Any = Ports()
    watch = PinnedWatch(
        gpu,
        server="box",
        host="box.1",
        fleet="main",
        device=Device("GPU-a", "gpu0"),
        nvml=nvml,
        ports=ports,
    )
    watch.measure()
    watch.beat()
    library.answers.clear()
    monkeypatch.setattr(nvml, "_answer_seconds", 0.2)
    watch.measure()
    watch.beat()
    monkeypatch.undo()
    library.answers.set()
    wait_for(lambda: watch.measure() or "gpu" in (watch._telemetry or {}))
    watch.beat()
    silent = "the GPU can't be read: the driver does not answer"
    assert [said["why"] for said in beats(watch)] == ["", silent, ""]
