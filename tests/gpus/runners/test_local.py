"""The runner of a pinned worker: calls to the local GPU, and their results."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gpu_host.local.gpu import LocalRunner
from gpu_host.local.orders import Order, Stopped
from gpus.errors import RunFailed
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Abort, Finished, PollFailed, RunRequest

MODEL = ModelSpec("flux", "flux", max_run_seconds=7.0)
REQUEST = RunRequest("j", "a", MODEL, Endpoint("box", "local://box/flux"), {"n": 1}, "box/0", 1)


class Gpu:
    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.stopped: list[str] = []
        self.how = Stopped.KILLED
        self.result: Any = {"ok": True}

    def run(self, order: Order, abort: Any) -> Any:
        self.orders.append(order)
        return self.result

    def folder_of(self, attempt: str) -> Path:
        return Path("/nowhere") / attempt

    def stop_run(self, attempt: str, *, why: Any = None) -> Stopped:
        self.stopped.append(attempt)
        return self.how


def runner(gpu: Any) -> LocalRunner:
    return LocalRunner(gpu)


def test_a_local_run_gets_the_models_limit_and_returns_its_result():
    gpu = Gpu()
    assert runner(gpu).start(REQUEST, abort=Abort()) == Finished({"ok": True})
    assert gpu.orders == [Order("a", "j", "flux", {"n": 1}, 7.0)]


def test_a_result_that_is_too_large_fails_the_run():
    small = dataclasses.replace(REQUEST, model=dataclasses.replace(MODEL, max_response_bytes=10))
    with pytest.raises(RunFailed, match="11 bytes, 10 at most"):
        runner(Gpu()).start(small, abort=Abort())


def test_counts_in_a_result_are_the_usage():
    gpu = Gpu()
    gpu.result = {"image": "…", "usage": {"steps": 20}}
    assert runner(gpu).start(REQUEST, abort=Abort()).usage == {"steps": 20}


def test_a_jobs_own_lower_limit_counts():
    gpu = Gpu()
    runner(gpu).start(dataclasses.replace(REQUEST, limit_seconds=3.0), abort=Abort())
    assert gpu.orders[0].limit_seconds == 3.0


@pytest.mark.parametrize("result", ["a\0b", {"deep": ["\ud800"]}, {"\0": 1}])
def test_a_result_that_no_database_takes_fails_the_run(result):
    gpu = Gpu()
    gpu.result = result
    with pytest.raises(RunFailed, match="can be stored"):
        runner(gpu).start(REQUEST, abort=Abort())


@pytest.mark.parametrize("how", list(Stopped))
def test_a_cancel_is_a_proof_unless_the_process_is_still_there(how):
    gpu = Gpu()
    gpu.how = how
    assert runner(gpu).cancel(REQUEST, None) is (how is not Stopped.NOT_GONE)
    assert gpu.stopped == ["a"]


def test_a_local_run_cannot_be_polled():
    with pytest.raises(PollFailed) as raised:
        runner(Gpu()).poll(REQUEST, "r", abort=Abort())
    assert raised.value.gone
