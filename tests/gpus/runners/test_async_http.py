from __future__ import annotations

import dataclasses

import pytest

from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from gpus.errors import ConnectFailed, RunFailed
from gpus.protocol import ModelSpec
from gpus.runners import http_runner
from gpus.runners.base import Abort, Accepted, Finished, PollFailed, RunRequest, StillRunning
from tests.gpu_host.node import custom_handlers
from tests.gpus.runners.node_contract import Bench, NodeContract
from tests.support.waiting import wait_for

MODEL = ModelSpec(
    "m",
    "m",
    model_type="async",
    poll_endpoint_template="/status/{id}",
    cancel_endpoint_template="/cancel/{id}",
)


def accepted(bench: Bench, request: RunRequest) -> str:
    outcome = bench.runner.start(request, abort=Abort())
    assert isinstance(outcome, Accepted)
    return outcome.remote_id


class TestAsyncHttpRunner(NodeContract):
    mode = "async"
    model = MODEL

    def begin_waiting(self, bench: Bench) -> RunRequest:
        self.remote_id = accepted(bench, request := bench.request({"seconds": 60}))
        bench.node.faults.add({"fault": "hang", "on": "status"})
        return request

    def wait_until_waiting(self, bench: Bench) -> None:
        wait_for(lambda: bench.node.faults.active() == [])

    def wait_for_answer(self, bench: Bench, request: RunRequest, abort: Abort) -> None:
        bench.runner.poll(request, self.remote_id, abort=abort)

    def test_a_run_may_be_cancelled_by_its_remote_id(self, bench: Bench) -> None:
        request = bench.request({"seconds": 60})
        assert bench.runner.cancel(request, accepted(bench, request)) is True
        assert bench.outcomes() == ["cancelled"]

    @pytest.mark.parametrize("status", [500, 502, 503, 429, 401])
    def test_a_poll_that_fails_may_be_repeated(self, bench: Bench, status: int) -> None:
        request = bench.request({"seconds": 0})
        remote_id = accepted(bench, request)
        bench.node.faults.add({"fault": status, "on": "status"})
        with pytest.raises(PollFailed) as raised:
            bench.runner.poll(request, remote_id, abort=Abort())
        assert not raised.value.gone
        wait_for(lambda: isinstance(bench.runner.poll(request, remote_id, abort=Abort()), Finished))

    @pytest.mark.parametrize("fault", ["drop_reply", "hang", "slow"])
    def test_a_poll_without_answer_may_be_repeated(
        self, bench: Bench, fault: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(http_runner, "POLL_SECONDS", 0.2)
        request = bench.request({"seconds": 60})
        remote_id = accepted(bench, request)
        bench.node.faults.add({"fault": fault, "on": "status"})
        with pytest.raises(PollFailed):
            bench.runner.poll(request, remote_id, abort=Abort())
        monkeypatch.undo()
        assert isinstance(bench.runner.poll(request, remote_id, abort=Abort()), StillRunning)

    def test_a_server_that_cannot_be_reached_for_a_poll_may_come_back(self, bench: Bench) -> None:
        request = bench.request({"seconds": 60})
        remote_id = accepted(bench, request)
        bench.node.stop()
        with pytest.raises(PollFailed) as raised:
            bench.runner.poll(request, remote_id, abort=Abort())
        assert isinstance(raised.value.__cause__, ConnectFailed)

    def test_a_run_that_the_server_forgot_is_gone(self, bench: Bench) -> None:
        with pytest.raises(PollFailed) as raised:
            bench.runner.poll(bench.request(), "never/heard of it?", abort=Abort())
        assert raised.value.gone

    def test_a_poll_that_cannot_be_read_leaves_doubt(self, bench: Bench) -> None:
        bench.node.faults.add({"fault": "wrong_json", "on": "status"})
        request = bench.request({"seconds": 60})
        with pytest.raises(RunFailed) as raised:
            bench.runner.poll(request, accepted(bench, request), abort=Abort())
        assert raised.value.suspect

    def test_without_a_place_to_poll_the_run_fails(self, bench: Bench) -> None:
        request = bench.request(model=dataclasses.replace(MODEL, poll_endpoint_template=None))
        with pytest.raises(RunFailed, match="poll_endpoint_template"):
            bench.runner.poll(request, "r1", abort=Abort())

    def test_secrets_are_not_polled_away(self, bench: Bench) -> None:
        away = dataclasses.replace(MODEL, poll_endpoint_template="http://127.0.0.1:1/status/{id}")
        with pytest.raises(RunFailed, match="another origin"):
            bench.runner.poll(bench.request(model=away), "r1", abort=Abort())
        here = dataclasses.replace(MODEL, poll_endpoint_template=f"{bench.node.url}/status/{{id}}")
        request = bench.request({"seconds": 60}, model=here)
        assert isinstance(bench.runner.poll(request, accepted(bench, request), abort=Abort()), StillRunning)


def test_a_run_is_polled_until_its_end() -> None:
    custom_handlers.release.clear()
    with Node(NodeConfig(handler="tests.gpu_host.node.custom_handlers:held", mode="async")) as node:
        bench = Bench(node, MODEL)
        request = bench.request({"x": 1})
        remote_id = accepted(bench, request)

        def poll() -> Finished | StillRunning:
            return bench.runner.poll(request, remote_id, abort=Abort())

        assert isinstance(poll(), StillRunning)
        assert wait_for(lambda: getattr(poll(), "progress", None)) == 0.5, "the progress is passed on"
        custom_handlers.release.set()
        wait_for(lambda: poll() == Finished({"x": 1}))


def test_an_async_model_on_a_server_that_answers_at_once_is_finished() -> None:
    with Node(NodeConfig(handler="gpu_host.node.simulator:run", mode="sync")) as node:
        bench = Bench(node, MODEL)
        outcome = bench.runner.start(bench.request({"seconds": 0, "echo": 1}), abort=Abort())
        assert isinstance(outcome, Finished)


def test_an_answer_to_the_post_that_cannot_be_read_leaves_doubt() -> None:
    with Node(NodeConfig(handler="gpu_host.node.simulator:run", mode="sync")) as node:
        bench = Bench(node, MODEL)
        for fault in ("wrong_json", "huge_reply"):
            small = dataclasses.replace(MODEL, max_response_bytes=100_000)
            with pytest.raises(RunFailed) as raised:
                bench.drive(bench.request({"seconds": 0, "fault": fault}, model=small))
            assert raised.value.suspect
