"""A stock Cog container: one PUT per run, and its webhook delivered or missed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from foundation.log_lines import LogPart
from gpus.errors import BadInput, GpuBusy, GpuError, RunFailed, ServerFailed
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Abort, Accepted, Finished, PollFailed, RunRequest, StillRunning
from gpus.runners.cog_http import CogRunner
from gpus.runners.registry import runner_for
from tests.support.servers.cog_server import CogServer
from tests.support.waiting import wait_for

SPEC = ModelSpec("m", "m", model_type="cog", poll_interval=5.0)


@pytest.fixture
def cog() -> Iterator[CogServer]:
    with CogServer() as cog:
        yield cog


def request_to(cog: CogServer, payload: Any = None, **values: Any) -> RunRequest:
    endpoint = Endpoint("gpu-1", cog.url, max_slots=cog.slots)
    given = {"job_id": "j", "attempt_id": "01ATTEMPT", "endpoint": endpoint, "slot": "gpu-1/0", "fence": 1}
    return RunRequest(**{**given, "model": SPEC, "payload": payload or {"prompt": "x"}, **values})


def start(request: RunRequest) -> Accepted | Finished:
    return runner_for(SPEC).start(request, abort=Abort())


def test_a_prediction_is_put_under_the_attempt_id_with_its_webhook(cog: CogServer) -> None:
    cog.hold, cog.webhooks = True, False
    request = request_to(cog, push_url="http://dispatcher/callback/j", push_token="a b")
    assert start(request) == start(request) == Accepted("01ATTEMPT")
    assert cog.runs == {"01ATTEMPT": 1}
    assert cog.prefers == ["respond-async"] * 2
    assert cog.bodies[0] == {
        "input": {"prompt": "x"},
        "webhook": "http://dispatcher/callback/j?token=a%20b",
        "webhook_events_filter": ["logs", "completed"],
    }


def test_a_payload_may_be_the_whole_request(cog: CogServer) -> None:
    start(request_to(cog, {"input": {"prompt": "y"}}))
    assert cog.bodies[0] == {"input": {"prompt": "y"}}
    with pytest.raises(BadInput):
        start(request_to(cog, ["no", "object"]))


@pytest.mark.parametrize("path", ["", "/", "/predictions", "/predictions/"])
def test_the_endpoint_is_the_container_or_its_predictions(cog: CogServer, path: str) -> None:
    start(request_to(cog, endpoint=Endpoint("gpu-1", cog.url + path)))
    assert cog.runs == {"01ATTEMPT": 1}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((409, {"error": "At capacity - all prediction slots busy", "status": "failed"}), GpuBusy),
        ((503, {"error": "Setup has not finished yet", "status": "failed"}), GpuBusy),
        ((422, {"detail": [{"loc": ["body", "input", "prompt"], "msg": "Field required"}]}), BadInput),
        ((500, {"detail": "Internal Server Error"}), ServerFailed),
    ],
)
def test_an_error_answer_has_its_cost(cog: CogServer, answer: tuple[int, Any], error: type[GpuError]) -> None:
    cog.refuse = answer
    with pytest.raises(error) as raised:
        start(request_to(cog))
    assert type(raised.value) is error


def test_a_full_container_is_busy(cog: CogServer) -> None:
    cog.hold = True
    start(request_to(cog))
    with pytest.raises(GpuBusy):
        start(request_to(cog, attempt_id="02ANOTHER"))


# -- news ----------------------------------------------------------------------------------------------


def test_webhook_bodies_are_read(cog: CogServer) -> None:
    request, runner = request_to(cog), runner_for(SPEC)
    start(request)
    wait_for(lambda: cog.pushed)
    assert runner.read_pushed(request, cog.pushed[0]) == Finished(
        {"output": "picture", "logs": "loading\n"}, {"predict_time": 0.5}
    )
    assert isinstance(runner.read_pushed(request, {"status": "processing"}), StillRunning)


def test_webhooks_of_a_running_prediction_bring_its_log(cog: CogServer) -> None:
    cog.webhooks = False
    parts: list[LogPart] = []
    request = request_to(cog, report=lambda kind, part: parts.append(part))
    runner = runner_for(SPEC)
    for logs, status in (
        ("a\n", "processing"),
        ("a\nb\nhalf", "processing"),
        ("a\nb\nhalf a line\n", "succeeded"),
    ):
        runner.read_pushed(request, {"status": status, "output": 1, "logs": logs})
    assert [[line.text for line in part.lines] for part in parts] == [["a"], ["b"], ["half a line"]]


def test_failed_predictions_are_read(cog: CogServer) -> None:
    request, runner = request_to(cog), runner_for(SPEC)
    for status in ("failed", "canceled"):
        with pytest.raises(RunFailed):
            runner.read_pushed(request, {"status": status, "error": "boom"})


def test_polling_reads_the_health_check_only(cog: CogServer) -> None:
    cog.hold = True
    request, runner = request_to(cog), runner_for(SPEC)
    start(request)
    for _ in range(10):
        assert isinstance(runner.poll(request, "01ATTEMPT", abort=Abort()), StillRunning)
    assert cog.runs == {"01ATTEMPT": 1}


def test_a_container_that_was_full_and_idle_since_and_never_pushed_lost_the_run(cog: CogServer) -> None:
    cog.webhooks, cog.hold = False, True
    request, runner = request_to(cog), runner_for(SPEC)
    start(request)
    assert isinstance(runner.poll(request, "01ATTEMPT", abort=Abort()), StillRunning)
    cog.gate.set()
    wait_for(lambda: not cog.running)
    for _ in range(3):  # 15 s at its poll interval
        assert isinstance(runner.poll(request, "01ATTEMPT", abort=Abort()), StillRunning)
    with pytest.raises(PollFailed, match="DISPATCHER_PUBLIC_URL") as raised:
        runner.poll(request, "01ATTEMPT", abort=Abort())
    assert raised.value.gone


def test_a_ready_container_with_more_slots_than_registered_proves_no_loss() -> None:
    with CogServer(slots=4) as cog:
        cog.hold = True
        request = request_to(cog, endpoint=Endpoint("gpu-1", cog.url, max_slots=1))
        runner = runner_for(SPEC)
        start(request)
        for _ in range(10):
            assert cog.health() == "READY"
            assert isinstance(runner.poll(request, "01ATTEMPT", abort=Abort()), StillRunning)
        assert cog.running, "it ran all the time"


def test_a_ready_container_of_several_slots_proves_nothing() -> None:
    with CogServer(slots=2) as cog:
        request, runner = request_to(cog), runner_for(SPEC)
        for _ in range(10):
            assert isinstance(runner.poll(request, "01ATTEMPT", abort=Abort()), StillRunning)


@pytest.mark.parametrize("state", ["STARTING", "SETUP_FAILED", "DEFUNCT"])
def test_a_container_that_does_not_serve_lost_the_run(cog: CogServer, state: str) -> None:
    cog.state = state
    with pytest.raises(PollFailed, match=state) as raised:
        runner_for(SPEC).poll(request_to(cog), "01ATTEMPT", abort=Abort())
    assert raised.value.gone


def test_a_container_that_does_not_answer_is_asked_again(cog: CogServer) -> None:
    request = request_to(cog)
    cog.__exit__()
    with pytest.raises(PollFailed) as raised:
        runner_for(SPEC).poll(request, "01ATTEMPT", abort=Abort())
    assert not raised.value.gone


# -- cancel ----------------------------------------------------------------------------------------------


def test_a_cancel_succeeds_once_the_prediction_is_unknown(cog: CogServer) -> None:
    cog.hold = True
    request, runner = request_to(cog), runner_for(SPEC)
    start(request)
    assert runner.cancel(request, "01ATTEMPT") is True
    assert not cog.running
    assert len(cog.cancels) >= 2


def test_a_run_that_ignores_its_cancel_does_not_count_as_stopped(
    cog: CogServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpus.runners.cog_http._CANCEL_PAUSES", (0.01,) * 3)
    cog.hold = True
    request = request_to(cog)
    start(request)
    monkeypatch.setattr(cog, "cancel", lambda number: 200)
    assert CogRunner(SPEC).cancel(request, "01ATTEMPT") is False


def test_an_unknown_prediction_has_stopped_only_if_known_before(cog: CogServer) -> None:
    runner, request = runner_for(SPEC), request_to(cog)
    assert runner.cancel(request, "01ATTEMPT") is True
    assert runner.cancel(request, None) is False, "its request may still be on its way"
