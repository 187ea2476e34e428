"""A worker that runs models by itself: what their runs say, and what it may be asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from dispatcher_project.worker.pinned import Wishes, _hear, run_pinned_worker
from gpus.local.orders import Order
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Abort, RunRequest
from gpus.runners.local import LocalRunner


class Gpu:
    """Says what a run said of itself, as `LocalGpu` does."""

    def run(self, order: Order, patience: Any) -> Any:
        _hear(order, "partial", "word")
        _hear(order, "log", {"text": "a line", "fields": {}})
        _hear(order, "progress", 0.5)
        return "whole"


def test_what_a_local_run_says_goes_where_that_of_http_runs_goes() -> None:
    told: list[tuple[str, Any]] = []
    request = RunRequest(
        job_id="j",
        attempt_id="a",
        model=ModelSpec("m", "m"),
        endpoint=Endpoint("box", "local://box/m"),
        payload={},
        slot="box/0",
        fence=1,
        tell=lambda kind, value: told.append((kind, value)),
    )
    gpu: Any = Gpu()
    assert LocalRunner(gpu).start(request, abort=Abort()).result == "whole"
    assert told == [("partial", "word"), ("progress", 0.5)]


def test_a_gpu_needs_models_or_servers() -> None:
    with pytest.raises(CommandError, match="--models or --servers"):
        call_command("gpu_worker", gpu="none")
    with pytest.raises(CommandError, match="--models or --servers"):
        call_command("gpu_worker", servers=Path("llms.toml"))


def test_a_file_of_servers_that_cannot_be_read_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = run_pinned_worker(Wishes(gpu="none", models=[], name="box", servers=tmp_path / "none.toml"))
    said = capsys.readouterr().err
    assert status == 2
    assert said.startswith("gpu_worker: ")
    assert said.count("\n") == 1
