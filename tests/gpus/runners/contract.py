"""The contract of all runners, tested with a real server or GPU process.

A runner passes it with a `Stage`: its server, and what to do to it. `test_contract.py` has the stages of all
runners; a package that brings a runner of its own makes a stage and a subclass of `RunnerContract`.
"""

from __future__ import annotations

import dataclasses
import itertools
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from gpus.errors import (
    BadInput,
    ConnectFailed,
    GpuBusy,
    GpuError,
    Interrupted,
    RunFailed,
    RunTimedOut,
    ServerFailed,
    ServerLost,
)
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import (
    Abort,
    Accepted,
    Finished,
    OptionRefused,
    PollFailed,
    Runner,
    RunRequest,
    StillRunning,
)
from gpus.runners.connections import Pool
from gpus.runners.registry import ServerRunner, find_runner, runner_for
from gpus.runners.transport import HttpTransport
from tests.support.waiting import wait_for

_numbers = itertools.count(1)


class Stage(ABC):
    """One model behind one runner. payload: of a run that succeeds; held_payload: of one that does not end by
    itself; failing_payload: of one that its model lets fail."""

    model: ModelSpec
    payload: Any
    held_payload: Any
    failing_payload: Any

    @abstractmethod
    def runner(self) -> Runner:
        """A new one, as each attempt gets."""

    @abstractmethod
    def endpoint(self) -> Endpoint: ...

    @abstractmethod
    def running(self) -> int:
        """Runs that are under way."""

    @abstractmethod
    def is_right(self, result: Any) -> bool:
        """Whether it is the result of a run with `payload`."""

    def prepare_failure(self) -> None:  # noqa: B027
        """Where the server fails a run, and not its payload."""

    def prepare_hold(self) -> None:  # noqa: B027
        """Where the server holds a run, and not its payload."""

    def pushed(self, attempt_id: str) -> Mapping[str, Any] | None:
        """The body that the server pushed at the attempt's end."""
        return None

    def request(self, payload: Any = None, **values: Any) -> RunRequest:
        number = next(_numbers)
        request = RunRequest(
            job_id=f"job-{number}",
            attempt_id=f"attempt-{number}",
            model=self.model,
            endpoint=self.endpoint(),
            payload=self.payload if payload is None else payload,
            slot=f"gpu-1/{number}",
            fence=number,
            push_url="http://127.0.0.1:9/push",
            push_token="t0ken",
        )
        return dataclasses.replace(request, **values)


class ServerStage(Stage):
    """A server that is reached by a URL. bad_options: by name, a value that the runner refuses."""

    bad_options: Mapping[str, Any] = {}

    @abstractmethod
    def refuse(self, status: int) -> None:
        """The next runs are answered so."""

    @abstractmethod
    def garble(self) -> None:
        """The next runs' answers, or those to their polls, can't be read."""

    @abstractmethod
    def senders(self) -> list[str]:
        """The job ids that came with requests for runs."""

    @abstractmethod
    def stop(self) -> None:
        """The address refuses connections from now on."""

    def runner(self) -> Runner:
        return runner_for(self.model)

    def kind(self) -> type[ServerRunner]:
        found = find_runner(self.model.model_type)
        assert found is not None
        return found

    def get(self, url: str) -> Any:
        return HttpTransport(Pool()).request(
            "GET",
            url,
            headers={},
            body=None,
            connect_timeout_seconds=5.0,
            deadline_seconds=5.0,
            max_bytes=1_000_000,
        )


class Driven:
    """A run in a thread of its own, driven as a worker does. remote_id: once the server gave one."""

    def __init__(self, stage: Stage, request: RunRequest) -> None:
        self.stage, self.request = stage, request
        self.runner, self.abort = stage.runner(), Abort()
        self.remote_id: str | None = None
        self._threads = ThreadPoolExecutor(1)
        self._end = self._threads.submit(self._go)

    def result(self) -> Any:
        """Or raises the run's error."""
        try:
            return self._end.result(60)
        finally:
            self._threads.shutdown()

    def _go(self) -> Any:
        started = self.runner.start(self.request, abort=self.abort)
        if isinstance(started, Finished):
            return started.result
        self.remote_id = started.remote_id
        while True:
            body = self.stage.pushed(self.request.attempt_id)
            if body is not None:
                news = self.runner.read_pushed(self.request, body)
            else:
                news = self.runner.poll(self.request, started.remote_id, abort=self.abort)
            if isinstance(news, Finished):
                return news.result
            time.sleep(0.01)


def drive(stage: Stage, request: RunRequest) -> Any:
    return Driven(stage, request).result()


def hold(stage: Stage) -> Driven:
    """A run that its server has begun, and that does not end by itself."""
    stage.prepare_hold()
    driven = Driven(stage, stage.request(stage.held_payload))
    wait_for(lambda: stage.running() == 1)
    if driven.runner.is_polled:
        wait_for(lambda: driven.remote_id)
    return driven


def cancel_early(driven: Driven) -> bool:
    """Ends a run early as a worker does: breaks the connection where that is not left open, then asks."""
    if not driven.runner.answer_ends_run:
        driven.abort.fire()
        with pytest.raises(GpuError):
            driven.result()
    return driven.runner.cancel(driven.request, driven.remote_id)


class RunnerContract:
    """For every runner; the fixture `stage` provides an idle one."""

    def test_a_run_returns_its_result(self, stage: Stage) -> None:
        assert stage.is_right(drive(stage, stage.request()))
        wait_for(lambda: stage.running() == 0)

    def test_on_sent_is_called_once_if_the_runner_declares_it(self, stage: Stage) -> None:
        called: list[int] = []
        drive(stage, stage.request(on_sent=lambda: called.append(1)))
        assert len(called) == int(stage.runner().calls_on_sent)

    def test_a_run_failed_by_its_model_costs_a_try_and_blames_no_server(self, stage: Stage) -> None:
        stage.prepare_failure()
        with pytest.raises(RunFailed) as raised:
            drive(stage, stage.request(stage.failing_payload))
        assert raised.value.counts
        assert not raised.value.suspect
        wait_for(lambda: stage.running() == 0)

    def test_a_run_that_is_let_go_and_cancelled_runs_no_more(self, stage: Stage) -> None:
        driven = hold(stage)
        assert cancel_early(driven) is True
        if driven.runner.answer_ends_run:
            with pytest.raises(GpuError):
                driven.result()
        wait_for(lambda: stage.running() == 0)

    def test_no_run_after_an_abort(self, stage: Stage) -> None:
        abort = Abort()
        abort.fire()
        with pytest.raises(Interrupted):
            stage.runner().start(stage.request(stage.held_payload), abort=abort)
        assert stage.running() == 0

    def test_only_a_polled_run_can_be_taken_up_by_another_worker(self, stage: Stage) -> None:
        driven, other = hold(stage), stage.runner()
        if driven.remote_id is not None:
            news = other.poll(driven.request, driven.remote_id, abort=Abort())
            assert isinstance(news, StillRunning)
        else:
            with pytest.raises((PollFailed, RunFailed)) as raised:
                other.poll(driven.request, "r1", abort=Abort())
            assert not isinstance(raised.value, PollFailed) or raised.value.gone
        assert (driven.remote_id is not None) == other.is_polled
        cancel_early(driven)

    def test_a_run_that_is_not_polled_ends_at_its_models_limit(self, stage: Stage) -> None:
        stage.prepare_hold()
        impatient = dataclasses.replace(stage.model, max_run_seconds=0.3)
        runner, request = stage.runner(), stage.request(stage.held_payload, model=impatient)
        if runner.is_polled:
            started = runner.start(request, abort=Abort())
            assert isinstance(started, Accepted)
            runner.cancel(request, started.remote_id)
            return
        with pytest.raises(RunTimedOut):
            runner.start(request, abort=Abort())
        runner.cancel(request, None)

    def test_pushed_results_are_read_if_servers_push(self, stage: Stage) -> None:
        runner, request = stage.runner(), stage.request()
        bodies: list[dict[str, Any]] = [{"status": "succeeded", "output": 1}, {"status": "failed"}, {"x": 1}]
        if not runner.is_pushed:
            assert [runner.read_pushed(request, body) for body in bodies] == [StillRunning()] * 3
            return
        assert isinstance(runner.read_pushed(request, bodies[0]), Finished)
        for body in bodies[1:]:
            with pytest.raises(RunFailed):
                runner.read_pushed(request, body)


class ServerContract:
    """Of every runner that is found by a `model_type`."""

    def test_the_runner_declares_its_name_and_flags(self, server: ServerStage) -> None:
        kind = server.kind()
        assert kind.name == server.model.model_type
        assert kind.summary.endswith(".")
        assert set(kind.options) <= {field.name for field in dataclasses.fields(ModelSpec)}
        assert not kind.is_pinned

    def test_unsupported_options_are_refused(self, server: ServerStage) -> None:
        server.kind().check_options(server.model)
        for name, value in server.bad_options.items():
            with pytest.raises(OptionRefused) as raised:
                server.kind().check_options(dataclasses.replace(server.model, **{name: value}))
            assert raised.value.option == name
            assert raised.value.code

    @pytest.mark.parametrize(
        ("status", "error"),
        [(422, BadInput), (429, GpuBusy), (500, ServerFailed), (502, ServerLost), (503, GpuBusy)],
    )
    def test_an_error_status_has_its_cost(
        self, server: ServerStage, status: int, error: type[GpuError]
    ) -> None:
        server.refuse(status)
        with pytest.raises(error) as raised:
            drive(server, server.request())
        assert type(raised.value) is error

    def test_a_server_that_is_not_there_cannot_be_reached(self, server: ServerStage) -> None:
        request = server.request()
        server.stop()
        with pytest.raises(ConnectFailed):
            drive(server, request)

    def test_an_answer_that_can_not_be_read_fails_the_run(self, server: ServerStage) -> None:
        server.garble()
        with pytest.raises(RunFailed):
            drive(server, server.request())

    def test_an_abort_ends_the_wait_for_an_answer(self, server: ServerStage) -> None:
        abort = Abort()
        with socket.create_server(("127.0.0.1", 0)) as silent:

            def fire_once_asked() -> None:
                connection, _ = silent.accept()
                with connection:
                    assert connection.recv(1)
                    abort.fire()
                    connection.recv(1_000_000)

            threading.Thread(target=fire_once_asked, daemon=True).start()
            endpoint = Endpoint("gpu-1", f"http://127.0.0.1:{silent.getsockname()[1]}")
            with pytest.raises(Interrupted):
                server.runner().start(server.request(endpoint=endpoint), abort=abort)

    def test_a_poll_of_a_server_that_is_gone_may_be_repeated(self, server: ServerStage) -> None:
        if not server.kind().is_polled:
            return
        request = server.request()
        server.stop()
        with pytest.raises(PollFailed) as raised:
            server.runner().poll(request, "r1", abort=Abort())
        assert not raised.value.gone

    def test_a_servers_own_headers_do_not_change_ours(self, server: ServerStage) -> None:
        secret = {"x-job-id": "another", "Authorization": "Bearer s3cret"}
        request = server.request(endpoint=dataclasses.replace(server.endpoint(), headers=secret))
        drive(server, request)
        assert server.senders() == [request.job_id]

    def test_the_health_probe_reports_the_servers_state(self, server: ServerStage) -> None:
        kind, endpoint = server.kind(), server.endpoint()
        asked = urlsplit(kind.health_url(server.model, endpoint))
        assert asked[:2] == urlsplit(endpoint.url)[:2], "the server's secret headers go nowhere else"
        idle = kind.health(server.model, endpoint, server.get)
        assert (idle.ok, idle.active_jobs in (None, 0)) == (True, True)
        driven = hold(server)
        busy = kind.health(server.model, endpoint, server.get)
        assert (busy.ok, busy.active_jobs in (None, 1)) == (True, True)
        cancel_early(driven)

    def test_an_unreachable_server_raises_in_the_health_probe(self, server: ServerStage) -> None:
        endpoint = server.endpoint()
        server.stop()
        with pytest.raises(ConnectFailed):
            server.kind().health(server.model, endpoint, server.get)
