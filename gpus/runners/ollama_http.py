"""Runner for Ollama's own protocol: ``/api/chat``, ``/api/generate`` and ``/api/embed``, with answers in JSON
lines.

As in Ollama, answers are streamed unless the payload has ``stream: false``. The result is Ollama's answer
without streaming: the last line's object with the complete text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpus.errors import BadInput
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Finished, Get, Health, Response, RunRequest, at_root, excerpt
from gpus.runners.llm import (
    Answer,
    LlmRunner,
    SizeLimit,
    incomplete_answer,
    parse_object,
    payload_url,
    with_model_name,
)
from gpus.runners.recognition import OWN_PROTOCOL, Proposal, Site, listed, model_name
from gpus.runners.refusals import describe_status
from gpus.runners.streaming import Lines
from gpus.runners.transport import Unreadable, read_json

PATHS = {"messages": "/api/chat", "prompt": "/api/generate", "input": "/api/embed"}
_COUNTS = {"prompt_eval_count": "prompt_tokens", "eval_count": "completion_tokens"}


class OllamaRunner(LlmRunner):
    """Runs jobs on an Ollama server."""

    name = "ollama"
    summary = "An Ollama server; the endpoint is its address."
    options: Sequence[str] = ("remote_model", "keep_alive_seconds")

    def url(self, run: RunRequest) -> str:
        endpoint = run.endpoint.url.rstrip("/").removesuffix("/api")
        return payload_url(endpoint, run.payload, PATHS, "")

    def body(self, run: RunRequest) -> dict[str, Any]:
        body = with_model_name(run)
        if not isinstance(body.get("stream", True), bool):
            raise BadInput("stream must be true or false.")
        if run.model.keep_alive_seconds is not None:  # the operator's value overrides the tenant's
            body["keep_alive"] = run.model.keep_alive_seconds
        return body

    def is_streamed(self, body: Mapping[str, Any]) -> bool:
        return body.get("stream", True) is True and "input" not in body

    def answer(self, run: RunRequest, response: Response) -> Answer:
        return OllamaStream(run)

    def read_whole(self, body: Mapping[str, Any]) -> Finished:
        return Finished(dict(body), usage_of(body))

    @classmethod
    def health_url(cls, model: ModelSpec, endpoint: Endpoint) -> str:
        return at_root(endpoint.url, "/api/tags")

    @classmethod
    def health(cls, model: ModelSpec, endpoint: Endpoint, get: Get) -> Health:
        """Probe the list of models. A missing model is no fault of the server; its jobs fail with
        ModelMissing."""
        answer = get(cls.health_url(model, endpoint))
        if has_model(answer, model.remote_model or model.name) is None:
            return Health(
                False, error=f"/api/tags answered {describe_status(answer.status)}: {excerpt(answer)}"
            )
        return Health(True)

    @classmethod
    def recognise(cls, site: Site) -> list[Proposal]:
        """A proposal for each model that ``/api/tags`` lists."""
        root = f"{site.root}{site.path.removesuffix('/api')}"
        names = listed(site.json(f"{root}/api/tags"), "models", "name")
        return [
            Proposal(
                model_type=cls.name,
                model=model_name(name),
                endpoint=root,
                certainty=OWN_PROTOCOL,
                reasons=(f"/api/tags lists {name}, as Ollama does.",),
                options={"remote_model": name},
                test_payload={
                    "messages": [{"role": "user", "content": "Say hello."}],
                    "options": {"num_predict": 16},
                },
            )
            for name in names
        ]


class OllamaStream:
    """Assembles a streamed answer: each line holds a piece of the text, the last one the token counts."""

    def __init__(self, run: RunRequest) -> None:
        self._report_to = run.report
        self._lines = Lines(run.model.max_response_bytes)
        self._size = SizeLimit(run.model.max_response_bytes)
        self._message: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._last: dict[str, Any] | None = None

    def feed(self, piece: bytes) -> bool:
        for line in self._lines.feed(piece):
            self._take(line)
        return self._last is not None

    def finished(self) -> Finished:
        if self._last is None:
            self._take(self._lines.end())
        if self._last is None:
            raise incomplete_answer()
        result = dict(self._last)
        texts = {name: "".join(parts) for name, parts in self._texts.items()}
        if isinstance(result.get("message"), dict) or self._message:
            parsed = {name: text for name, text in texts.items() if name != "response"}
            result["message"] = {**self._message, **parsed}
        else:
            result |= texts
        return Finished(result, usage_of(self._last))

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        parsed = parse_object(line)
        message = parsed.get("message")
        source = message if isinstance(message, dict) else parsed
        for name in ("content", "response", "thinking"):
            if isinstance(source.get(name), str):
                parts = self._texts.setdefault(name, [])
                if source[name]:
                    self._size.add(source[name])
                    parts.append(source[name])
                    self._report_to(
                        "partial", {"reasoning": source[name]} if name == "thinking" else source[name]
                    )
        if isinstance(message, dict):
            self._keep(message)
        if parsed.get("done") is True:
            self._size.add(parsed)
            self._last = parsed

    def _keep(self, message: Mapping[str, Any]) -> None:
        """Store the role, and tool calls, which are not split over lines."""
        for name, value in message.items():
            if name == "tool_calls" and isinstance(value, list):
                self._size.add(value)
                self._message.setdefault("tool_calls", []).extend(value)
            elif name == "role" and isinstance(value, str):
                self._message[name] = value


def has_model(answer: Response, model: str) -> bool | None:
    """Whether a list of Ollama (`/api/tags`, `/api/ps`) has the model; None if it is not such a list."""
    try:
        parsed = read_json(answer.body) if answer.status == 200 else None
    except Unreadable:
        parsed = None
    models = parsed.get("models") if isinstance(parsed, dict) else None
    if not isinstance(models, list):
        return None
    names = {str(one.get("name")) for one in models if isinstance(one, dict)}
    return bool(names & {model, f"{model}:latest"})


def usage_of(parsed: Mapping[str, Any]) -> dict[str, Any] | None:
    """Token counts under OpenAI's names, or None; durations stay in the result."""
    found = {ours: parsed[name] for name, ours in _COUNTS.items() if isinstance(parsed.get(name), int)}
    return {**found, "total_tokens": sum(found.values())} if found else None
