"""Both LLM protocols over real sockets: what is asked, what comes of it, and how it ends early."""

from __future__ import annotations

import dataclasses
import itertools
import json
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
from gpus.protocol import Endpoint, ModelSpec, ModelType
from gpus.runners.base import Abort, Finished, PollFailed, RunRequest
from gpus.runners.openai_http import Chunks
from gpus.runners.registry import runner_for
from tests.gpus.node.caller import eventually
from tests.gpus.runners.llm_server import USAGE, WORDS, Behaviour, LlmServer

_numbers = itertools.count(1)
TEXT = "".join(WORDS)
CHAT = {"messages": [{"role": "user", "content": "Tell me"}]}
KINDS = (ModelType.OPENAI, ModelType.OLLAMA)


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with LlmServer() as server:
        yield server


class Ask:
    """One run against a server, and what it told meanwhile."""

    def __init__(
        self, server: LlmServer, kind: ModelType, payload: Any, *, path: str = "", **model: Any
    ) -> None:
        self.told: list[tuple[str, Any]] = []
        self.abort = Abort()
        self.spec = dataclasses.replace(ModelSpec("m", "m", model_type=kind), **model)
        self.runner = runner_for(self.spec)
        self.request = RunRequest(
            job_id="job",
            attempt_id=f"attempt-{next(_numbers)}",
            model=self.spec,
            endpoint=Endpoint("gpu-1", server.url + path, headers={"Authorization": "Bearer key"}),
            payload=payload,
            slot="gpu-1/0",
            fence=1,
            push_url="http://dispatcher/callback",
            push_token="secret-token",
            tell=lambda kind, value: self.told.append((kind, value)),
        )

    def run(self) -> Finished:
        return self.runner.start(self.request, abort=self.abort)

    @property
    def text(self) -> str:
        return "".join(value for kind, value in self.told if kind == "partial" and isinstance(value, str))


def streamed(server: LlmServer, kind: ModelType, **more: Any) -> Ask:
    return Ask(server, kind, {**CHAT, "stream": True}, **more)


def content(finished: Finished, kind: ModelType) -> str:
    result = finished.result
    message = result["choices"][0]["message"] if kind is ModelType.OPENAI else result["message"]
    assert message["role"] == "assistant"
    return str(message["content"])


# -- what is asked, and what it becomes ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("one_byte_at_a_time", [False, True])
def test_a_streamed_chat_is_told_as_it_grows_and_ends_as_if_it_had_not_been(
    server: LlmServer, kind: ModelType, one_byte_at_a_time: bool
) -> None:
    server.does.one_byte_at_a_time = one_byte_at_a_time
    ask = streamed(server, kind)
    grown = ask.run()
    whole = Ask(server, kind, {**CHAT, "stream": False}).run()
    assert grown.result == whole.result
    assert content(grown, kind) == TEXT
    assert [value for _, value in ask.told] == list(WORDS)
    assert grown.usage == whole.usage == USAGE


def test_the_payload_says_which_path_it_is_for(server: LlmServer) -> None:
    Ask(server, ModelType.OPENAI, CHAT).run()
    Ask(server, ModelType.OPENAI, {"prompt": "Tell me", "stream": True}, path="/v1").run()
    Ask(server, ModelType.OPENAI, {"input": "text"}, path="/deep/v1/").run()
    Ask(server, ModelType.OPENAI, {"prompt": "x"}, path="/v1/completions").run()
    Ask(server, ModelType.OLLAMA, CHAT).run()
    Ask(server, ModelType.OLLAMA, {"prompt": "Tell me"}, path="/api").run()
    Ask(server, ModelType.OLLAMA, {"input": "text"}).run()
    assert [path for _, path, _, _ in server.asked] == [
        "/v1/chat/completions",
        "/v1/completions",
        "/deep/v1/embeddings",
        "/v1/completions",
        "/api/chat",
        "/api/generate",
        "/api/embed",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_streamed_completion_and_an_embedding_have_their_results_and_usage(
    server: LlmServer, kind: ModelType
) -> None:
    prompt = Ask(server, kind, {"prompt": "Tell me", "stream": True})
    result = prompt.run().result
    assert (result["choices"][0]["text"] if kind is ModelType.OPENAI else result["response"]) == TEXT
    assert prompt.text == TEXT
    embedded = Ask(server, kind, {"input": "text"}).run()
    assert "embedding" in str(embedded.result)
    assert embedded.usage is not None
    assert embedded.usage["total_tokens"] == 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_server_knows_the_model_by_its_own_name_and_no_other_may_be_asked_for(
    server: LlmServer, kind: ModelType
) -> None:
    server.does.models = ("meta/llama:8b", "another")
    Ask(server, kind, CHAT, remote_model="meta/llama:8b").run()
    Ask(server, kind, {**CHAT, "model": "meta/llama:8b"}, remote_model="meta/llama:8b").run()
    Ask(server, kind, {**CHAT, "model": "m"}, remote_model="meta/llama:8b").run()
    assert [body["model"] for body in server.bodies] == ["meta/llama:8b"] * 3
    with pytest.raises(BadInput, match="another"):
        Ask(server, kind, {**CHAT, "model": "another"}, remote_model="meta/llama:8b").run()
    assert len(server.bodies) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("payload", [[], "text", {}, {"what": 1}, {**CHAT, "stream": "yes"}])
def test_a_payload_that_fits_nothing_is_bad_input_before_anything_is_sent(
    server: LlmServer, kind: ModelType, payload: Any
) -> None:
    with pytest.raises(BadInput):
        Ask(server, kind, payload).run()
    assert server.asked == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [True, False])
def test_it_is_asked_with_the_servers_key_and_without_our_secrets(
    server: LlmServer, kind: ModelType, stream: bool
) -> None:
    ask = Ask(server, kind, {**CHAT, "stream": stream})
    ask.run()
    (_, _, headers, _) = server.asked[0]
    assert headers["Authorization"] == "Bearer key"
    assert headers["X-Request-Id"] == ask.request.attempt_id
    assert "secret-token" not in str(headers)


def test_tool_calls_reasoning_and_several_choices_are_put_together() -> None:
    """What the test server does not say: chunks as vLLM writes them."""
    told: list[Any] = []
    request = RunRequest(
        "j", "a", ModelSpec("m", "m"), Endpoint("s", "http://s"), CHAT, "s/0", 1,
        tell=lambda kind, value: told.append(value),
    )  # fmt: skip
    chunks = Chunks(request)
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"at": 1}'}}
    said = [
        {"index": 0, "delta": {"role": "assistant", "content": None, "reasoning_content": "hm"}},
        {"index": 1, "delta": {"content": "second"}, "logprobs": {"content": [{"token": "s"}]}},
        {"index": 0, "delta": {"reasoning_content": ", yes", "tool_calls": [call]}},
        {"index": 1, "delta": {"content": " choice"}, "logprobs": {"content": [{"token": "c"}]}},
        {"index": 0, "delta": {"tool_calls": [more]}, "finish_reason": "tool_calls"},
        {"index": 1, "delta": {}, "finish_reason": "stop"},
    ]
    for choice in said:
        chunks.feed(b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n")
    first, second = chunks.finished().result["choices"]
    assert first["message"] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm, yes",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
        ],
    }
    assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "stop")
    assert second["message"]["content"] == "second choice"
    assert [one["token"] for one in second["logprobs"]["content"]] == ["s", "c"]
    assert told == [{"reasoning": "hm"}, {"reasoning": ", yes"}]


def test_how_long_ollama_keeps_a_model_is_its_operators(server: LlmServer) -> None:
    Ask(server, ModelType.OLLAMA, {**CHAT, "keep_alive": "10m"}).run()
    Ask(server, ModelType.OLLAMA, {**CHAT, "keep_alive": -1}, keep_alive_seconds=0.0).run()
    assert [body["keep_alive"] for body in server.bodies] == ["10m", 0.0]


# -- what it costs --------------------------------------------------------------------------------------

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
def test_a_refusal_has_its_price(
    server: LlmServer, kind: ModelType, stream: bool, refusal: tuple[int, Any, type[GpuError]]
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
def test_a_model_that_the_server_does_not_have_is_a_failure_of_its_own(
    server: LlmServer, kind: ModelType
) -> None:
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
    ],
)
def test_an_error_in_the_middle_of_a_stream_has_its_price(
    server: LlmServer, kind: ModelType, said: Any, error: type[Exception]
) -> None:
    server.does.error = said
    with pytest.raises(error) as raised:
        streamed(server, kind).run()
    assert type(raised.value) is error


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_breaks_lost_the_server_and_leaves_no_doubt(server: LlmServer, kind: ModelType) -> None:
    server.does.cut_after = 2
    ask = streamed(server, kind)
    with pytest.raises(ServerLost) as raised:
        ask.run()
    assert not raised.value.suspect, "the run ended with its connection"
    assert ask.text == "".join(WORDS[:2])


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_ends_before_its_last_word_lost_the_server(server: LlmServer, kind: ModelType) -> None:
    server.does.no_last_word = True
    with pytest.raises(ServerLost, match="before it was whole"):
        streamed(server, kind).run()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("garbage", [b"data: {nonsense\n\n", b'data: "text"\n\n', b"data: [NaN]\n\n"])
def test_garbage_in_a_stream_fails_the_run(server: LlmServer, kind: ModelType, garbage: bytes) -> None:
    server.does.garbage = garbage if kind is ModelType.OPENAI else garbage.removeprefix(b"data: ")
    with pytest.raises(RunFailed):
        streamed(server, kind).run()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_may_not_be_larger_than_its_model_allows(
    server: LlmServer, kind: ModelType, stream: bool
) -> None:
    server.does.words = ("word" * 100,) * 50
    server.does.endless = stream  # it would never end by itself
    ask = Ask(server, kind, {**CHAT, "stream": stream}, max_response_bytes=10_000)
    with pytest.raises(RunFailed, match="larger than 10000 bytes"):
        ask.run()
    assert len(ask.text) <= 10_000
    if stream:
        assert server.hung_up.wait(5), "it is told to stop"


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_that_never_ends_is_not_gathered_for_ever(server: LlmServer, kind: ModelType) -> None:
    server.does.garbage = b"data: " + b"x" * 50_000
    with pytest.raises(RunFailed, match="longer than 10000 bytes"):
        streamed(server, kind, max_response_bytes=10_000).run()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trouble", [{"slow_first": True}, {"hang_after": 2}, {"endless": True}])
def test_no_stream_outlives_its_limit(server: LlmServer, kind: ModelType, trouble: dict[str, Any]) -> None:
    server.does = Behaviour(**trouble, words=("x",))
    if "hang_after" in trouble:
        server.does.words = WORDS
    with pytest.raises(RunTimedOut):
        streamed(server, kind, max_run_seconds=0.3, max_response_bytes=10**9).run()
    assert server.hung_up.wait(5), "the server hears of it"


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_is_not_there_costs_nothing(kind: ModelType) -> None:
    with LlmServer() as server:
        ask = streamed(server, kind)
    with pytest.raises(ConnectFailed):
        ask.run()


# -- ending early ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [True, False])
def test_a_cancel_closes_the_connection_and_the_server_hears_of_it(
    server: LlmServer, kind: ModelType, stream: bool
) -> None:
    if stream:
        server.does.hang_after = 2
    else:
        server.does.slow_first = True
    ask = Ask(server, kind, {**CHAT, "stream": stream})

    def cancel() -> None:
        (server.wrote.wait(5) if stream else eventually(lambda: bool(server.asked)))
        ask.abort.fire()

    threading.Thread(target=cancel, daemon=True).start()
    with pytest.raises(Interrupted):
        ask.run()
    assert ask.runner.cancel(ask.request, None) is True
    assert server.hung_up.wait(5)
    assert [what for _, what in server.log] == ["hung up"], "the server's own words"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_sent_after_an_abort(server: LlmServer, kind: ModelType) -> None:
    ask = streamed(server, kind)
    ask.abort.fire()
    with pytest.raises(Interrupted):
        ask.run()
    assert server.asked == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_cannot_be_taken_up_by_another_worker(server: LlmServer, kind: ModelType) -> None:
    ask = streamed(server, kind)
    with pytest.raises(PollFailed) as raised:
        ask.runner.poll(ask.request, "remote", abort=Abort())
    assert raised.value.gone
