"""Runner for servers with OpenAI's protocol: vLLM, llama.cpp, TGI, SGLang …

The payload is the request body; with ``stream: true`` the text is reported while it is generated. The result
has the same shape either way: the object of an answer without streaming.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from gpus.errors import BadInput, GpuError
from gpus.protocol import MAX_SLOTS, Endpoint, ModelSpec
from gpus.runners.base import MISSING_PAGE, Finished, Get, Health, Response, RunRequest, at_root, excerpt
from gpus.runners.llm import (
    Answer,
    LlmRunner,
    SizeLimit,
    incomplete_answer,
    llm_failure_of,
    parse_object,
    payload_url,
    with_model_name,
)
from gpus.runners.recognition import COMPATIBLE, Proposal, Site, listed, model_name
from gpus.runners.refusals import describe_status
from gpus.runners.streaming import ServerEvent, ServerEvents
from gpus.runners.usage import usage_in

PATHS = {"messages": "/chat/completions", "prompt": "/completions", "input": "/embeddings"}
BASE = "/v1"
_OBJECTS = {"chat.completion.chunk": "chat.completion", "text_completion": "text_completion"}
_MAX_CHOICES = 128
UNKNOWN_SLOTS = 8
"""Proposed slots if the server does not report its limit of concurrent requests; such servers batch."""
_RUNNING = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "llamacpp:requests_processing",
    "llamacpp:requests_deferred",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "tgi_batch_current_size",
    "tgi_queue_size",
)
_GAUGE = re.compile(rf"^({'|'.join(_RUNNING)})(?:\{{[^}}\n]*\}})?\s+([0-9.eE+]+)", re.MULTILINE)


class OpenAiRunner(LlmRunner):
    """Runs jobs on a server with OpenAI's protocol."""

    name = "openai"
    summary = "A server of OpenAI's protocol (vLLM, llama.cpp, TGI, SGLang); the endpoint is its address."

    def url(self, run: RunRequest) -> str:
        return payload_url(run.endpoint.url, run.payload, PATHS, BASE)

    def body(self, run: RunRequest) -> dict[str, Any]:
        body = with_model_name(run)
        if not isinstance(body.get("stream", False), bool):
            raise BadInput("stream must be true or false.")
        if body.get("stream"):
            options = body.get("stream_options") or {}
            if not isinstance(options, dict):
                raise BadInput("stream_options must be an object.")
            body["stream_options"] = {**options, "include_usage": True}
        return body

    def is_streamed(self, body: Mapping[str, Any]) -> bool:
        return body.get("stream") is True

    def answer(self, run: RunRequest, response: Response) -> Answer:
        return OpenAiStream(run)

    def read_whole(self, body: Mapping[str, Any]) -> Finished:
        return Finished(dict(body), usage_in(body))

    @classmethod
    def health_url(cls, model: ModelSpec, endpoint: Endpoint) -> str:
        return at_root(endpoint.url, "/health")

    @classmethod
    def health(cls, model: ModelSpec, endpoint: Endpoint, get: Get) -> Health:
        """Probe ``/health``, or without one the list of models; read the number of running jobs from
        ``/metrics``."""
        answer = get(cls.health_url(model, endpoint))
        if answer.status in MISSING_PAGE:
            base = re.sub(r"/(chat/completions|completions|embeddings)/?$", "", endpoint.url).rstrip("/")
            has_path = urlsplit(base).path
            answer = get(f"{base}/models" if has_path else f"{base}{BASE}/models")
        if answer.status in MISSING_PAGE:
            return Health(True, has_endpoint=False)
        if answer.status != 200:
            return Health(False, error=f"it answered {describe_status(answer.status)}: {excerpt(answer)}")
        try:
            metrics = get(at_root(endpoint.url, "/metrics"))
        except GpuError:  # metrics are optional
            return Health(True)
        return Health(True, active_jobs=_counted(metrics))

    @classmethod
    def recognise(cls, site: Site) -> list[Proposal]:
        """A proposal for each model that ``/v1/models`` lists; llama.cpp's ``/props`` has its slots."""
        listing = next((url for url in _listings(site) if isinstance(site.json(url), dict)), None)
        names = [] if listing is None else listed(site.json(listing), "data", "id")
        if listing is None or not names:
            return []
        properties = site.json(f"{site.root}/props")
        total = properties.get("total_slots") if isinstance(properties, dict) else None
        slots = total if type(total) is int and 1 <= total <= MAX_SLOTS else UNKNOWN_SLOTS
        reason = f"{listing} lists its models, as in OpenAI's protocol."
        known = (
            f"/props says {slots} slots."
            if slots == total
            else f"It does not say how many requests it runs at once; {slots} is a guess."
        )
        return [
            Proposal(
                model_type=cls.name,
                model=model_name(name),
                endpoint=listing.removesuffix("/models").removesuffix(BASE),
                certainty=COMPATIBLE,
                reasons=(reason, known),
                slots=slots,
                options={"remote_model": name},
                test_payload={"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16},
            )
            for name in names
        ]


def _listings(site: Site) -> list[str]:
    """Where the list of models may be: under the URL that was given, or under the server's root."""
    under = f"{site.root}{re.sub(r'/(chat/completions|completions|embeddings|models)$', '', site.path)}"
    found = [f"{under}/models"] if urlsplit(under).path else []
    return list(dict.fromkeys([*found, f"{site.root}{BASE}/models"]))


class OpenAiStream:
    """Assembles a streamed answer into the object of an answer without streaming."""

    def __init__(self, run: RunRequest) -> None:
        self._report_to = run.report
        self._events = ServerEvents(run.model.max_response_bytes)
        self._size = SizeLimit(run.model.max_response_bytes)
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._usage: dict[str, Any] | None = None
        self._done = False

    def feed(self, piece: bytes) -> bool:
        for event in self._events.feed(piece):
            self._take(event)
        return self._done

    def finished(self) -> Finished:
        if not self._done:
            for event in self._events.end():
                self._take(event)
        ended = self._choices and all(choice["finish_reason"] for choice in self._choices.values())
        if not (self._done or ended):  # some servers omit [DONE]
            raise incomplete_answer()
        choices = [_in_order(_whole(self._choices[index])) for index in sorted(self._choices)]
        result = {**self._head, "choices": choices}
        if self._usage is not None:
            result["usage"] = self._usage
        return Finished(result, self._usage)

    def _take(self, event: ServerEvent) -> None:
        if event.data.strip() == b"[DONE]":
            self._done = True
            return
        chunk = parse_object(event.data)
        if event.kind == "error":
            raise llm_failure_of({"error": chunk})
        if not self._head:
            kind = str(chunk.get("object", ""))
            self._head = {name: chunk[name] for name in ("id", "created", "model") if name in chunk}
            self._head["object"] = _OBJECTS.get(kind, kind)
            self._size.add(self._head)
        self._usage = usage_in(chunk) or self._usage
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._grow(choice)

    def _grow(self, parsed: Mapping[str, Any]) -> None:
        index = parsed.get("index", 0)
        if not isinstance(index, int) or not 0 <= index < _MAX_CHOICES:
            index = 0
        choice = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        if isinstance(parsed.get("delta"), dict):
            message = choice.setdefault("message", {"role": "assistant", "content": None})
            for name, value in parsed["delta"].items():
                self._add(message, name, value, index)
        if isinstance(parsed.get("text"), str):
            self._add(choice, "text", parsed["text"], index)
        if isinstance(parsed.get("logprobs"), dict):
            for name, value in parsed["logprobs"].items():
                self._add(choice.setdefault("logprobs", {}), name, value, index)
        if isinstance(parsed.get("finish_reason"), str):
            self._size.add(parsed["finish_reason"])
            choice["finish_reason"] = parsed["finish_reason"]

    def _add(self, to: dict[str, Any], name: str, value: Any, index: int) -> None:
        """Add a delta: texts and lists are appended, tool calls merged by index, other values set."""
        if value is None:
            return
        if name not in to:
            self._size.add(name)
        self._size.add(value)
        if name == "tool_calls" and isinstance(value, list):
            _grow_calls(to.setdefault("tool_calls", []), value)
        elif name in ("role", "id", "type"):
            to[name] = value
        elif isinstance(value, str):
            text = _text_in(to, name)
            if value:
                text.append(value)
                if index == 0:
                    self._report(name, value)
        elif isinstance(value, list):
            if not isinstance(to.get(name), list):
                to[name] = []
            to[name] += value
        else:
            to[name] = value

    def _report(self, name: str, text: str) -> None:
        if name in ("content", "text"):
            self._report_to("partial", text)
        elif name in ("reasoning", "reasoning_content"):
            self._report_to("partial", {"reasoning": text})


def _counted(metrics: Response) -> int | None:
    if metrics.status != 200:
        return None
    found = _GAUGE.findall(metrics.body.decode("utf-8", "replace"))
    try:
        return round(sum(float(number) for _, number in found)) if found else None
    except (ValueError, OverflowError):
        return None


class Text(list[str]):
    """Parts of a text, joined once at the end."""


def _text_in(to: dict[str, Any], name: str) -> Text:
    if not isinstance(to.get(name), Text):
        to[name] = Text()
    found: Text = to[name]
    return found


def _whole(value: Any) -> Any:
    if isinstance(value, Text):
        return "".join(value)
    if isinstance(value, dict):
        return {name: _whole(one) for name, one in value.items()}
    return [_whole(one) for one in value] if isinstance(value, list) else value


def _grow_calls(calls: list[dict[str, Any]], parsed: list[Any]) -> None:
    for one in parsed:
        if not isinstance(one, dict):
            continue
        index = one.get("index", len(calls))
        if not isinstance(index, int) or not 0 <= index <= len(calls) or index >= _MAX_CHOICES:
            continue
        if index == len(calls):
            empty = {"name": Text(), "arguments": Text()}
            calls.append({"id": None, "type": "function", "function": empty})
        call = calls[index]
        call["id"], call["type"] = one.get("id") or call["id"], one.get("type") or call["type"]
        function = one.get("function")
        for name in ("name", "arguments"):
            if isinstance(function, dict) and isinstance(function.get(name), str):
                call["function"][name].append(function[name])


def _in_order(choice: dict[str, Any]) -> dict[str, Any]:
    """The choice with `finish_reason` last, as servers write it."""
    return {name: choice[name] for name in sorted(choice, key=lambda name: name == "finish_reason")}
