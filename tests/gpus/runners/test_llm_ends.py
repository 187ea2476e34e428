"""Both LLM protocols over real sockets: errors, their costs, and early ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gpus.errors import (
    BadInput,
    ConnectFailed,
    GpuBusy,
    GpuError,
    GpuFault,
    Interrupted,
    ModelMissing,
    RunFailed,
    RunTimedOut,
    ServerFailed,
    ServerLost,
)
from gpus.runners.base import Abort, PollFailed
from tests.support.servers.llm_runs import CHAT, KINDS, Ask, streamed
from tests.support.servers.llm_server import WORDS, Behaviour, LlmServer
from tests.support.waiting import wait_for


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with LlmServer() as server:
        yield server


# -- costs --------------------------------------------------------------------------------------

REFUSALS = [
    (400, {"error": {"message": "max_tokens must be at least 1", "code": 400}}, BadInput),
    (422, {"error": "Input validation error: `inputs` must have less than 4096 tokens"}, BadInput),
    (404, {"error": "model 'm' not found"}, ModelMissing),
    (424, {"error": "Request failed during generation"}, ServerFailed),
    (429, {"error": "Model is overloaded"}, GpuBusy),
    (503, {"error": {"message": "Loading model", "code": 503}}, GpuBusy),
    (500, {"error": "boom"}, ServerFailed),
    (500, {"error": "CUDA error: an illegal memory access"}, GpuFault),
    (500, {"error": "the input length exceeds the context length"}, BadInput),
    (500, {"error": {"message": "the request exceeds the available context size", "code": 500}}, BadInput),
    (502, {"error": "bad gateway"}, ServerLost),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("refusal", REFUSALS)
def test_an_error_answer_has_its_cost(
    server: LlmServer, kind: str, stream: bool, refusal: tuple[int, Any, type[GpuError]]
) -> None:
    status, body, error = refusal
    server.does = Behaviour(status=status, body=body, headers={"Retry-After": "7"})
    with pytest.raises(error) as raised:
        Ask(server, kind, {**CHAT, "stream": stream}).run()
    assert type(raised.value) is error
    assert str(status) in str(raised.value)
    if error is GpuBusy:
        assert raised.value.retry_after_seconds == 7.0
    if error is ServerLost:
        assert not raised.value.suspect


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_model_has_its_own_error(server: LlmServer, kind: str) -> None:
    with pytest.raises(ModelMissing, match="missing"):
        Ask(server, kind, CHAT, remote_model="missing").run()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("an error was encountered while running the model", RunFailed),
        ("CUDA error: device-side assert", GpuFault),
        ({"message": "This model's maximum context length is 4096 tokens", "code": 400}, BadInput),
        ({"message": "overloaded", "code": 503}, GpuBusy),
        ({"message": "Input validation error: too many tokens", "http_status_code": 422}, BadInput),
        ({"message": "slow down", "status_code": 429}, GpuBusy),
        ({"message": "no such thing", "type": "invalid_request_error", "code": "bad_param"}, BadInput),
        ({"message": "temperature must be positive", "type": "BadRequestError"}, BadInput),
        ({"message": "CUDA error: device-side assert", "type": "generation"}, GpuFault),
        ({"message": "of no known kind", "type": ["odd"], "code": None}, RunFailed),
    ],
)
def test_an_error_in_a_stream_has_its_cost(
    server: LlmServer, kind: str, said: Any, error: type[Exception]
) -> None:
    server.does.error = said
    with pytest.raises(error) as raised:
        streamed(server, kind).run()
    assert type(raised.value) is error


@pytest.mark.parametrize(
    ("name", "error"), [("validation", BadInput), ("overloaded", GpuBusy), ("generation", ServerFailed)]
)
def test_tgis_names_for_an_error_have_their_price(
    server: LlmServer, name: str, error: type[Exception]
) -> None:
    server.does.garbage = b'data: {"error": "it said so", "error_type": "%s"}\n\n' % name.encode()
    with pytest.raises(error, match="it said so") as raised:
        streamed(server, "openai").run()
    assert type(raised.value) is error


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_breaks_lost_the_server_and_leaves_no_doubt(server: LlmServer, kind: str) -> None:
    server.does.cut_after = 2
    ask = streamed(server, kind)
    with pytest.raises(ServerLost) as raised:
        ask.run()
    assert not raised.value.suspect, "the run ended with its connection"
    assert raised.value.unfinished, "its end is unknown"
    assert ask.text == "".join(WORDS[:2])


@pytest.mark.parametrize("kind", KINDS)
def test_an_incomplete_stream_is_a_lost_server(server: LlmServer, kind: str) -> None:
    server.does.no_last_word = True
    with pytest.raises(ServerLost, match="before it was complete") as raised:
        streamed(server, kind).run()
    assert raised.value.unfinished


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("garbage", [b"data: {nonsense\n\n", b'data: "text"\n\n', b"data: [NaN]\n\n"])
def test_garbage_in_a_stream_fails_the_run(server: LlmServer, kind: str, garbage: bytes) -> None:
    server.does.garbage = garbage if kind == "openai" else garbage.removeprefix(b"data: ")
    with pytest.raises(RunFailed):
        streamed(server, kind).run()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_may_not_be_larger_than_its_model_allows(
    server: LlmServer, kind: str, stream: bool
) -> None:
    server.does.words = ("word" * 100,) * 50
    server.does.endless = stream  # it would never end by itself
    ask = Ask(server, kind, {**CHAT, "stream": stream}, max_response_bytes=10_000)
    with pytest.raises(RunFailed, match="larger than 10000 bytes"):
        ask.run()
    assert len(ask.text) <= 10_000
    if stream:
        assert server.hung_up.wait(30), "the connection is closed, so that the server stops"


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_that_never_ends_is_not_gathered_for_ever(server: LlmServer, kind: str) -> None:
    server.does.garbage = b"data: " + b"x" * 50_000
    with pytest.raises(RunFailed, match="longer than 10000 bytes"):
        streamed(server, kind, max_response_bytes=10_000).run()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trouble", [{"slow_first": True}, {"hang_after": 2}, {"endless": True}])
def test_a_stream_ends_at_its_limit(server: LlmServer, kind: str, trouble: dict[str, Any]) -> None:
    server.does = Behaviour(**trouble, words=("x",))
    if "hang_after" in trouble:
        server.does.words = WORDS
    with pytest.raises(RunTimedOut):
        streamed(server, kind, max_run_seconds=0.3, max_response_bytes=10**9).run()
    assert server.hung_up.wait(30), "the server sees the hang-up"


@pytest.mark.parametrize("kind", KINDS)
def test_an_unreachable_server_costs_no_try(kind: str) -> None:
    with LlmServer() as server:
        ask = streamed(server, kind)
    with pytest.raises(ConnectFailed):
        ask.run()


# -- ending early ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [True, False])
def test_a_cancel_closes_the_connection_to_the_server(server: LlmServer, kind: str, stream: bool) -> None:
    if stream:
        server.does.hang_after = 2
    else:
        server.does.slow_first = True
    ask = Ask(server, kind, {**CHAT, "stream": stream})

    def cancel() -> None:
        (server.wrote.wait(5) if stream else wait_for(lambda: bool(server.asked)))
        ask.abort.fire()

    threading.Thread(target=cancel, daemon=True).start()
    with pytest.raises(Interrupted):
        ask.run()
    assert ask.runner.cancel(ask.request, None) is True
    assert server.hung_up.wait(30)
    assert [what for _, what in server.log] == ["hung up"], "the server's own words"


@pytest.mark.parametrize("kind", KINDS)
def test_no_request_is_sent_after_an_abort(server: LlmServer, kind: str) -> None:
    ask = streamed(server, kind)
    ask.abort.fire()
    with pytest.raises(Interrupted):
        ask.run()
    assert server.asked == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_cannot_be_taken_up_by_another_worker(server: LlmServer, kind: str) -> None:
    ask = streamed(server, kind)
    with pytest.raises(PollFailed) as raised:
        ask.runner.poll(ask.request, "remote", abort=Abort())
    assert raised.value.gone
