from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from gpus.errors import Interrupted, RunFailed, RunTimedOut
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Abort, Accepted, Finished, RunRequest
from gpus.runners.registry import runner_for
from tests.gpus.runners.node_contract import Bench, NodeContract
from tests.support.waiting import wait_for

MODEL = ModelSpec("m", "m", cancel_endpoint_template="/cancel/{job_id}")


class TestSyncHttpRunner(NodeContract):
    mode = "sync"
    model = MODEL

    def begin_waiting(self, bench: Bench) -> RunRequest:
        return bench.request({"fault": "hang"})

    def wait_until_waiting(self, bench: Bench) -> None:
        wait_for(lambda: bench.running() == 1)

    def wait_for_answer(self, bench: Bench, request: RunRequest, abort: Abort) -> None:
        bench.runner.start(request, abort=abort)

    def test_a_run_past_its_limit_times_out(self, bench: Bench) -> None:
        impatient = dataclasses.replace(MODEL, max_run_seconds=0.2)
        with pytest.raises(RunTimedOut):
            bench.drive(bench.request({"fault": "hang"}, model=impatient))

    def test_a_dripping_answer_does_not_outlive_the_limit(self, bench: Bench) -> None:
        impatient = dataclasses.replace(MODEL, max_run_seconds=0.2)
        with pytest.raises(RunTimedOut):
            bench.drive(bench.request({"seconds": 0, "fault": "slow", "drip_seconds": 60}, model=impatient))

    def test_after_an_abort_the_run_can_still_be_cancelled(self, bench: Bench) -> None:
        abort = Abort()
        request = bench.request({"fault": "hang"})
        threading.Thread(target=lambda: (self.wait_until_waiting(bench), abort.fire()), daemon=True).start()
        with pytest.raises(Interrupted):
            bench.runner.start(request, abort=abort)
        assert bench.runner.cancel(request, None) is True
        assert bench.running() == 0

    def test_an_answer_that_cannot_be_read_leaves_no_doubt_that_the_run_is_over(self, bench: Bench) -> None:
        with pytest.raises(RunFailed) as raised:
            bench.drive(bench.request({"seconds": 0, "fault": "wrong_json"}))
        assert not raised.value.suspect


class TestSyncModelOnAServerThatAnswersLater:
    def test_a_processing_answer_is_polled_with_a_poll_template(self) -> None:
        with _bench("async") as bench:
            polled = dataclasses.replace(MODEL, poll_endpoint_template="/status/{id}")
            request = bench.request({"seconds": 0.05, "echo": 1}, model=polled)
            assert isinstance(runner_for(polled).start(request, abort=Abort()), Accepted)
            assert bench.drive(bench.request({"seconds": 0.05, "echo": 1}, model=polled))["echo"] == 1

    def test_a_processing_answer_without_a_poll_template_leaves_the_slot_suspect(self) -> None:
        with _bench("async") as bench, pytest.raises(RunFailed, match="poll_endpoint_template") as raised:
            bench.drive(bench.request({"seconds": 60}))
        assert raised.value.suspect


def test_the_request_on_the_wire(serve) -> None:
    server = serve(lambda visit: (visit.read_request(), visit.answer()))
    secret = {"x-job-id": "another", "Authorization": "Bearer s3cret"}
    request = RunRequest(
        "j1",
        "a1",
        MODEL,
        Endpoint("gpu-1", server.url, headers=secret),
        {"prompt": "\u20ac"},
        "gpu-1/0",
        7,
        push_url="http://dispatcher/push",
        push_token="t0ken",
    )
    assert runner_for(MODEL).start(request, abort=Abort()) == Finished(1)
    head, _, body = server.requests[0].decode().partition("\r\n\r\n")
    assert set(head.split("\r\n")[1:]) == {
        f"Host: 127.0.0.1:{server.port}",
        "Accept-Encoding: identity",
        f"Content-Length: {len(body)}",
        "Authorization: Bearer s3cret",
        "Accept: application/json",
        "Content-Type: application/json",
        "X-Source: dispatcher",
        "X-Job-Id: j1",
        "X-Attempt: a1",
        "Idempotency-Key: a1",
        "X-Slot: gpu-1/0",
        "X-Fence: 7",
        "X-Callback-Url: http://dispatcher/push",
        "X-Callback-Token: t0ken",
    }
    assert body == '{"prompt":"\\u20ac"}'


@contextmanager
def _bench(mode: str) -> Iterator[Bench]:
    with Node(NodeConfig(handler="gpu_host.node.simulator:run", slots=2, mode=mode)) as node:
        yield Bench(node, MODEL)
