"""Both LLM protocols over real sockets: requests and results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpus.errors import (
    BadInput,
)
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import RunRequest
from gpus.runners.openai_http import OpenAiStream
from tests.support.servers.llm_runs import CHAT, KINDS, TEXT, Ask, content, streamed
from tests.support.servers.llm_server import USAGE, WORDS, LlmServer


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with LlmServer() as server:
        yield server


# -- requests and results ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("one_byte_at_a_time", [False, True])
def test_a_streamed_chat_is_reported_and_has_the_result_of_an_unstreamed_one(
    server: LlmServer, kind: str, one_byte_at_a_time: bool
) -> None:
    server.does.one_byte_at_a_time = one_byte_at_a_time
    ask = streamed(server, kind)
    grown = ask.run()
    whole = Ask(server, kind, {**CHAT, "stream": False}).run()
    assert grown.result == whole.result
    assert content(grown, kind) == TEXT
    assert [value for _, value in ask.reports] == list(WORDS)
    assert grown.usage == whole.usage == USAGE


def test_the_payload_selects_the_path(server: LlmServer) -> None:
    Ask(server, "openai", CHAT).run()
    Ask(server, "openai", {"prompt": "Tell me", "stream": True}, path="/v1").run()
    Ask(server, "openai", {"input": "text"}, path="/deep/v1/").run()
    Ask(server, "openai", {"prompt": "x"}, path="/v1/completions").run()
    Ask(server, "ollama", CHAT).run()
    Ask(server, "ollama", {"prompt": "Tell me"}, path="/api").run()
    Ask(server, "ollama", {"input": "text"}).run()
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
    server: LlmServer, kind: str
) -> None:
    prompt = Ask(server, kind, {"prompt": "Tell me", "stream": True})
    result = prompt.run().result
    assert (result["choices"][0]["text"] if kind == "openai" else result["response"]) == TEXT
    assert prompt.text == TEXT
    embedded = Ask(server, kind, {"input": "text"}).run()
    assert "embedding" in str(embedded.result)
    assert embedded.usage is not None
    assert embedded.usage["total_tokens"] == 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_remote_model_name_is_sent_and_other_models_are_refused(server: LlmServer, kind: str) -> None:
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
def test_a_payload_without_a_path_is_bad_input_before_a_request(
    server: LlmServer, kind: str, payload: Any
) -> None:
    with pytest.raises(BadInput):
        Ask(server, kind, payload).run()
    assert server.asked == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [True, False])
def test_requests_carry_the_servers_key_and_no_dispatcher_secrets(
    server: LlmServer, kind: str, stream: bool
) -> None:
    ask = Ask(server, kind, {**CHAT, "stream": stream})
    ask.run()
    (_, _, headers, _) = server.asked[0]
    assert headers["Authorization"] == "Bearer key"
    assert headers["X-Request-Id"] == ask.request.attempt_id
    assert "secret-token" not in str(headers)


def test_tool_calls_reasoning_and_several_choices_are_put_together() -> None:
    """Chunks that the test server does not write, as vLLM writes them."""
    reports: list[Any] = []
    request = RunRequest(
        "j", "a", ModelSpec("m", "m"), Endpoint("s", "http://s"), CHAT, "s/0", 1,
        report=lambda kind, value: reports.append(value),
    )  # fmt: skip
    chunks = OpenAiStream(request)
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
    assert reports == [{"reasoning": "hm"}, {"reasoning": ", yes"}]


def test_keep_alive_is_set_by_the_operator(server: LlmServer) -> None:
    Ask(server, "ollama", {**CHAT, "keep_alive": "10m"}).run()
    Ask(server, "ollama", {**CHAT, "keep_alive": -1}, keep_alive_seconds=0.0).run()
    assert [body["keep_alive"] for body in server.bodies] == ["10m", 0.0]
