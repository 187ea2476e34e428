"""One run against an LLM server, for the tests of both protocols."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Abort, Finished, RunRequest
from gpus.runners.registry import runner_for
from tests.support.servers.llm_server import WORDS, LlmServer

_numbers = itertools.count(1)
TEXT = "".join(WORDS)
CHAT = {"messages": [{"role": "user", "content": "Tell me"}]}
KINDS = ("openai", "ollama")


class Ask:
    """One run against a server, and its progress reports."""

    def __init__(self, server: LlmServer, kind: str, payload: Any, *, path: str = "", **model: Any) -> None:
        self.reports: list[tuple[str, Any]] = []
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
            report=lambda kind, value: self.reports.append((kind, value)),
        )

    def run(self) -> Finished:
        return self.runner.start(self.request, abort=self.abort)

    @property
    def text(self) -> str:
        return "".join(value for kind, value in self.reports if kind == "partial" and isinstance(value, str))


def streamed(server: LlmServer, kind: str, **more: Any) -> Ask:
    return Ask(server, kind, {**CHAT, "stream": True}, **more)


def content(finished: Finished, kind: str) -> str:
    result = finished.result
    message = result["choices"][0]["message"] if kind == "openai" else result["message"]
    assert message["role"] == "assistant"
    return str(message["content"])
