"""A worker that runs models by itself: what their runs say, and what it may be asked for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import structlog
from django.core.management import CommandError, call_command

from dispatcher_project.celery_transport import pinned
from dispatcher_project.celery_transport.pinned import (
    LINES_AT_ONCE,
    LINES_PER_SECOND,
    PinnedOptions,
    RunEvents,
    find_device,
    run_pinned_worker,
)
from foundation.log_lines import LogLine, LogPart
from gpu_host.handlers.code import Declared
from gpu_host.local.device import NoSuchDevice
from gpu_host.local.gpu import LocalRunner
from gpu_host.local.nvml import Nvml, NvmlError
from gpu_host.local.orders import Order
from gpus.protocol import Endpoint, ModelSpec
from gpus.registry.model_fields import RegistryRefused
from gpus.runners.base import Abort, RunRequest
from tests.support.fake_nvml import Card, FakeNvml

LINES = LogPart([LogLine("log", "a line")])


class Gpu:
    """Sends the events of a run, as `LocalGpu` does."""

    def run(self, order: Order, abort: Any) -> Any:
        events = RunEvents()
        events(order, "partial", "word")
        events(order, "log", LINES)
        events(order, "progress", 0.5)
        return "whole"

    def folder_of(self, attempt: str) -> Path:
        return Path("/runs") / attempt


def test_events_of_local_runs_take_the_path_of_http_runs() -> None:
    reports: list[tuple[str, Any]] = []
    request = RunRequest(
        job_id="j",
        attempt_id="a",
        model=ModelSpec("m", "m"),
        endpoint=Endpoint("box", "local://box/m"),
        payload={},
        slot="box/0",
        fence=1,
        report=lambda kind, value: reports.append((kind, value)),
    )
    gpu: Any = Gpu()
    assert LocalRunner(gpu).start(request, abort=Abort()).result == "whole"
    assert reports == [("partial", "word"), ("log", LINES), ("progress", 0.5)]


def test_a_flood_of_lines_does_not_flood_the_workers_log() -> None:
    order = Order("a", "j", "m", {}, 1.0)
    began = time.monotonic()
    with structlog.testing.capture_logs() as logged:
        RunEvents()(order, "log", LogPart([LogLine("stdout", "x")] * 5000))
    took = time.monotonic() - began
    lines = len([one for one in logged if one["event"] == "model_log"])
    assert LINES_AT_ONCE <= lines <= LINES_AT_ONCE + LINES_PER_SECOND * took + 1


def test_a_gpu_needs_models_or_servers() -> None:
    with pytest.raises(CommandError, match="--models or --servers"):
        call_command("gpu_worker", gpu="none")
    with pytest.raises(CommandError, match="--models or --servers"):
        call_command("gpu_worker", servers=Path("llms.toml"))


def test_an_unreadable_file_of_servers_is_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run_pinned_worker(
        PinnedOptions(gpu="none", models=[], name="box", servers=tmp_path / "none.toml")
    )
    said = capsys.readouterr().err
    assert status == 2
    assert said.startswith("gpu_worker: ")
    assert said.count("\n") == 1


def test_a_worker_registers_its_servers_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def register(**values: Any) -> None:
        said.append(values["machine"])
        raise RegistryRefused("seen", "seen", pointer="")

    class NoModels:
        def start(self) -> dict[str, Any]:
            return {"m": Declared("m")}

        def stop(self) -> None:
            pass

    monkeypatch.setattr(pinned, "make_gpu", lambda *_: NoModels())
    monkeypatch.setattr(pinned, "register_pinned", register)
    monkeypatch.setattr(pinned, "_sign_off", lambda *_: None)
    monkeypatch.setattr(pinned.socket, "gethostname", lambda: "-gpu_worker.pool-" + "x" * 60 + ".example")
    run_pinned_worker(PinnedOptions(gpu="none", models=["m"], name="box"))
    run_pinned_worker(PinnedOptions(gpu="none", models=["m"], name="box", machine="rack-7"))
    assert said == ["gpu_worker.pool-" + "x" * 48, "rack-7"]


def test_an_invalid_machine_name_is_refused() -> None:
    with pytest.raises(CommandError, match="is not a valid name"):
        call_command("gpu_worker", "--gpu", "none", "--models", "m", "--machine", "a b")


@pytest.fixture
def half_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose first card fell off the bus."""
    cards = [Card("GPU-aaaa1111-x"), Card("GPU-bbbb2222-x", parts=[Card("MIG-cccc3333-x")])]
    cards[0].lost = True
    monkeypatch.setattr(pinned, "Nvml", lambda: Nvml(FakeNvml(*cards)))


@pytest.mark.usefixtures("half_lost")
@pytest.mark.parametrize("said", ["1", "GPU-bbbb2222-x", "GPU-bbbb", "MIG-cccc3333-x"])
def test_a_lost_card_does_not_stop_workers_of_other_cards(said: str) -> None:
    device, nvml = find_device(said)
    assert device.uuid == ("MIG-cccc3333-x" if said.startswith("MIG") else "GPU-bbbb2222-x")
    assert nvml is not None
    assert nvml.read(device.uuid).total_mb == 16_000


@pytest.mark.usefixtures("half_lost")
@pytest.mark.parametrize("said", ["0", "GPU-aaaa1111-x"])
def test_a_worker_of_the_lost_card_does_not_start(said: str) -> None:
    with pytest.raises(NoSuchDevice):
        find_device(said)


@pytest.mark.usefixtures("half_lost")
def test_a_gpu_named_by_its_whole_uuid_needs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Nvml) -> list[str]:
        raise NvmlError("no count")

    monkeypatch.setattr(Nvml, "uuids", broken)
    assert find_device("GPU-bbbb2222-x")[0].label == "gpu-bbbb2222"
