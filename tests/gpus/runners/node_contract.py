"""The contract of the runners of the dispatcher's own protocol, tested with a real GPU server (the node).
The contract of all runners is in `contract.py`.

A runner's test module makes a subclass and says how its node is started and its model configured.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from gpus.errors import (
    BadInput,
    GpuBusy,
    GpuFault,
    Interrupted,
    LeaseLost,
    RunFailed,
    ServerFailed,
    ServerLost,
)
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Abort, Finished, PollFailed, RunRequest
from gpus.runners.registry import runner_for
from tests.support.waiting import wait_for

_numbers = itertools.count(1)


class Bench:
    """A node with two slots, a model on it, and its runner."""

    def __init__(self, node: Node, model: ModelSpec) -> None:
        self.node, self.model, self.runner = node, model, runner_for(model)

    def request(self, payload: dict[str, Any] | None = None, **values: Any) -> RunRequest:
        number = next(_numbers)
        return dataclasses.replace(
            RunRequest(
                job_id=f"job-{number}",
                attempt_id=f"attempt-{number}",
                model=self.model,
                endpoint=Endpoint("gpu-1", f"{self.node.url}/generate"),
                payload={"seconds": 0} if payload is None else payload,
                slot=f"gpu-1/{number}",
                fence=number,
            ),
            **values,
        )

    def drive(self, request: RunRequest, *, abort: Abort | None = None) -> Any:
        """From start to end, polling without pause. Returns the result or raises."""
        abort = abort or Abort()
        started = self.runner.start(request, abort=abort)
        if isinstance(started, Finished):
            return started.result
        while True:
            polled = self.runner.poll(request, started.remote_id, abort=abort)
            if isinstance(polled, Finished):
                return polled.result

    def running(self) -> int:
        return int(self.node.health()["active_jobs"])

    def outcomes(self) -> list[str | None]:
        return [entry["outcome"] for entry in self.node.runs()]


class NodeContract:
    model: ModelSpec
    mode: str

    @pytest.fixture
    def bench(self) -> Iterator[Bench]:
        # a cancel waits for the run's end, and how fast the run's thread gets there is not asked here
        config = NodeConfig(
            handler="gpu_host.node.simulator:run", slots=2, mode=self.mode, cancel_wait_seconds=30.0
        )
        with Node(config) as node:
            yield Bench(node, self.model)

    # -- how runs end -----------------------------------------------------------------------------------

    def test_a_run_returns_its_result(self, bench: Bench) -> None:
        assert bench.drive(bench.request({"seconds": 0.02, "echo": [1, "\u20ac"]}))["echo"] == [1, "\u20ac"]
        assert bench.outcomes() == ["success"]

    @pytest.mark.parametrize(
        ("payload", "error", "words"),
        [
            ({"seconds": 0, "fault": "fail"}, RunFailed, "the simulated model failed"),
            ({"seconds": 0, "fault": "cuda"}, GpuFault, "CUDA error"),
            ({"seconds": "long"}, BadInput, "seconds is a number"),
        ],
    )
    def test_a_failed_run_has_the_cost_of_its_cause(
        self, bench: Bench, payload: dict[str, Any], error: type[Exception], words: str
    ) -> None:
        with pytest.raises(error, match=words) as raised:
            bench.drive(bench.request(payload))
        assert type(raised.value) is error

    @pytest.mark.parametrize(
        ("status", "error"),
        [
            (422, BadInput),
            (429, GpuBusy),
            (500, ServerFailed),
            (502, ServerLost),
            (503, GpuBusy),
            (307, ServerFailed),
        ],
    )
    def test_a_refused_run_has_the_cost_of_its_status(
        self, bench: Bench, status: int, error: type[Exception]
    ) -> None:
        with pytest.raises(error) as raised:
            bench.drive(bench.request({"fault": status}))
        assert type(raised.value) is error
        assert bench.node.runs() == []

    def test_a_full_server_says_when_to_come_again(self, bench: Bench) -> None:
        with ThreadPoolExecutor(2) as threads:
            aborts = [Abort(), Abort()]
            hanging = [bench.request({"fault": "hang"}) for _ in aborts]
            ends = [
                threads.submit(self._drive_quietly, bench, request, abort)
                for request, abort in zip(hanging, aborts, strict=True)
            ]
            wait_for(lambda: bench.running() == 2)
            with pytest.raises(GpuBusy) as raised:
                bench.drive(bench.request())
            assert raised.value.retry_after_seconds == 1.0
            for request, abort in zip(hanging, aborts, strict=True):
                bench.runner.cancel(request, None)
                abort.fire()
            assert all(end.result() for end in ends)
        assert bench.node.health()["refused_503"] == 1

    @pytest.mark.parametrize("fault", ["wrong_json", "huge_reply"])
    def test_an_answer_that_cannot_be_taken_fails_the_run(self, bench: Bench, fault: str) -> None:
        small = dataclasses.replace(bench.model, max_response_bytes=100_000)
        with pytest.raises(RunFailed):
            bench.drive(bench.request({"seconds": 0, "fault": fault}, model=small))

    def test_a_reply_that_never_comes_lost_the_server(self, bench: Bench) -> None:
        with pytest.raises(ServerLost):
            bench.drive(bench.request({"seconds": 0, "fault": "drop_reply"}))
        wait_for(lambda: bench.outcomes() == ["success"])

    def test_a_restart_during_a_run_loses_it(self, bench: Bench) -> None:
        with ThreadPoolExecutor(1) as threads:
            end = threads.submit(bench.drive, bench.request({"fault": "hang"}))
            wait_for(lambda: bench.running() == 1)
            boot_id = bench.node.health()["boot_id"]
            bench.node.restart()
            with pytest.raises((ServerLost, PollFailed)) as raised:
                self._until_known(bench, end)
        assert isinstance(raised.value, ServerLost) or raised.value.gone
        assert bench.node.health()["boot_id"] != boot_id
        assert bench.drive(bench.request()) is not None, "the connections to its old life are not used"

    # -- requests -----------------------------------------------------------------------------------

    def test_requests_carry_job_and_attempt_ids(self, bench: Bench) -> None:
        request = bench.request()
        bench.drive(request)
        (entry,) = bench.node.runs()
        assert (entry["job"], entry["attempt"]) == (request.job_id, request.attempt_id)
        assert (entry["slot"], entry["fence"]) == (request.slot, request.fence)
        assert entry["source"] == "dispatcher"

    def test_a_servers_own_headers_do_not_change_ours(self, bench: Bench) -> None:
        url = f"{bench.node.url}/generate"
        secret = {"x-job-id": "another", "X-SOURCE": "", "Authorization": "Bearer s3cret"}
        request = bench.request(endpoint=Endpoint("gpu-1", url, headers=secret))
        bench.drive(request)
        (entry,) = bench.node.runs()
        assert (entry["job"], entry["source"]) == (request.job_id, "dispatcher")

    def test_an_attempt_sent_twice_runs_once(self, bench: Bench) -> None:
        request = bench.request({"seconds": 0, "echo": "once"})
        assert bench.drive(request) == bench.drive(request)
        assert len(bench.node.runs()) == 1

    def test_a_late_request_with_a_stale_fence_is_refused(self, bench: Bench) -> None:
        late, present = bench.request(slot="gpu-1/0"), bench.request(slot="gpu-1/0")
        bench.drive(present)
        with pytest.raises(LeaseLost):
            bench.drive(late)
        assert [entry["attempt"] for entry in bench.node.runs()] == [present.attempt_id]
        assert bench.node.health()["late_senders"] == 1

    # -- ending a run early -------------------------------------------------------------------------------

    def test_a_cancel_stops_the_run_on_the_server(self, bench: Bench) -> None:
        request = bench.request({"fault": "hang"})
        with ThreadPoolExecutor(1) as threads:
            end = threads.submit(bench.drive, request)
            wait_for(lambda: bench.running() == 1)
            assert bench.runner.cancel(request, None) is True
            with pytest.raises(RunFailed, match="cancelled"):
                end.result()
        assert bench.running() == 0
        assert bench.outcomes() == ["cancelled"]

    def test_a_cancel_leaves_other_attempts_of_the_job_alone(self, bench: Bench) -> None:
        with ThreadPoolExecutor(1) as threads:
            request = bench.request({"fault": "hang"})
            end = threads.submit(self._drive_quietly, bench, request, Abort())
            wait_for(lambda: bench.running() == 1)
            earlier = dataclasses.replace(request, attempt_id="an-earlier-one")
            assert bench.runner.cancel(earlier, None) is True
            assert bench.running() == 1
            assert bench.runner.cancel(request, None) is True
            assert end.result()

    def test_a_cancel_before_its_run_prevents_the_run(self, bench: Bench) -> None:
        request = bench.request()
        assert bench.runner.cancel(request, None) is True
        with pytest.raises(RunFailed, match="cancelled"):
            bench.drive(request)
        assert bench.node.runs() == []

    def test_without_a_template_the_protocols_own_path_cancels(self, bench: Bench) -> None:
        request = bench.request(model=dataclasses.replace(bench.model, cancel_endpoint_template=None))
        assert bench.runner.cancel(request, None) is True

    def test_secrets_do_not_go_to_another_address(self, bench: Bench) -> None:
        away = dataclasses.replace(bench.model, cancel_endpoint_template="http://127.0.0.1:1/cancel/{id}")
        with pytest.raises(RunFailed, match="another origin"):
            bench.runner.cancel(bench.request(model=away), None)

    def test_an_abort_before_the_start_sends_nothing(self, bench: Bench) -> None:
        abort = Abort()
        abort.fire()
        with pytest.raises(Interrupted):
            bench.runner.start(bench.request(), abort=abort)
        assert bench.node.runs() == []

    def test_an_abort_ends_the_wait_for_an_answer(self, bench: Bench) -> None:
        abort = Abort()
        request = self.begin_waiting(bench)
        threading.Thread(target=lambda: (self.wait_until_waiting(bench), abort.fire()), daemon=True).start()
        with pytest.raises(Interrupted):
            self.wait_for_answer(bench, request, abort)

    def begin_waiting(self, bench: Bench) -> RunRequest:
        """Create a run whose next answer never arrives."""
        raise NotImplementedError

    def wait_until_waiting(self, bench: Bench) -> None:
        raise NotImplementedError

    def wait_for_answer(self, bench: Bench, request: RunRequest, abort: Abort) -> None:
        raise NotImplementedError

    # -- pushed results -------------------------------------------------------------------------------------

    def test_a_pushed_body_is_read_like_a_polled_one(self, bench: Bench) -> None:
        request = bench.request()
        assert bench.runner.read_pushed(request, {"status": "success", "result": 1}) == Finished(1)
        with pytest.raises(GpuFault):
            bench.runner.read_pushed(request, {"status": "failed", "error_code": "gpu_fault"})

    @staticmethod
    def _drive_quietly(bench: Bench, request: RunRequest, abort: Abort) -> bool:
        with pytest.raises((RunFailed, Interrupted)):
            bench.drive(request, abort=abort)
        return True

    @staticmethod
    def _until_known(bench: Bench, end: Any) -> None:
        """A poll may meet the moment of the restart itself; the next one finds the run gone."""
        try:
            end.result()
        except PollFailed as failure:
            if failure.gone:
                raise
            raise PollFailed("asked again", gone=bench.running() == 0) from failure
