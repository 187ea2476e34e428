"""The stored size of a stream is limited, so that an endless one cannot fill the memory."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import RunRequest
from gpus.runners.ollama_http import OllamaStream
from gpus.runners.openai_http import OpenAiStream
from gpus.runners.streaming import ServerEvents
from gpus.runners.transport import ResponseTooLarge

RUN = RunRequest(
    "j", "a", ModelSpec("m", "m", max_response_bytes=1000), Endpoint("g", "http://g"), {}, "g/0", 1
)


def event(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


@pytest.mark.parametrize("where", ["delta", "logprobs"])
def test_field_names_count_like_values(where: str) -> None:
    chunks = OpenAiStream(RUN)
    many = b"".join(event(**{where: {f"name-of-a-field-{number}": ""}}) for number in range(100))
    with pytest.raises(ResponseTooLarge):
        chunks.feed(many)


def test_pieces_without_a_letter_are_not_kept() -> None:
    chunks, words = OpenAiStream(RUN), OllamaStream(RUN)
    for _ in range(100):
        chunks.feed(event(delta={"content": ""}))
        words.feed(b'{"message": {"content": ""}}\n')
    assert chunks._choices[0]["message"]["content"] == []
    assert words._texts == {"content": []}


def test_a_name_counts_once() -> None:
    chunks = OpenAiStream(RUN)
    for _ in range(900):
        chunks.feed(event(delta={"content": "x"}))
    chunks.feed(event(finish_reason="stop"))
    assert chunks.finished().result["choices"][0]["message"]["content"] == "x" * 900


def test_only_words_are_a_reason_to_finish() -> None:
    chunks = OpenAiStream(RUN)
    chunks.feed(event(delta={"content": "x"}, finish_reason={"a": "b"}))
    assert chunks._choices[0]["finish_reason"] is None
    with pytest.raises(ResponseTooLarge):
        chunks.feed(event(finish_reason="stop" * 300))


def test_an_event_of_empty_lines_ends_too() -> None:
    events = ServerEvents(1000)
    with pytest.raises(ResponseTooLarge):
        list(events.feed(b"data:\n" * 1001))
