"""Input from GPU servers, nodes and model processes."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from hypothesis import strategies as st

from foundation import json_text
from gpu_host.local.frames import Pipe, PipeBroken
from gpu_host.node.http_server import HttpServer, Request, reply_json
from gpu_host.node.routes import _read_order
from gpus.errors import GpuError
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners import cog_http, http_runner, refusals, transport
from gpus.runners.base import Accepted, CancelUnsupported, Finished, Health, PollFailed, Response, RunRequest
from gpus.runners.llm import llm_error_of
from gpus.runners.ollama_http import OllamaRunner, OllamaStream
from gpus.runners.openai_http import OpenAiRunner, OpenAiStream
from gpus.runners.registry import RUNNERS, runner_for
from gpus.runners.transport import parse_simple_head
from tests.fuzz.parser import JSON, Parser, objects

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STATES = st.sampled_from(
    ["success", "failed", "processing", "queued", "SUCCEEDED", "canceled", "READY", "BUSY", ""]
)
TRACE = st.sampled_from(
    ["CUDA error: an illegal memory access", "out of memory", "torch.cuda.OutOfMemoryError"]
)


def encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def texts_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return values.map(encoded) | st.binary(max_size=60)


ANSWER = objects(
    "status",
    "result",
    "error",
    "error_code",
    "detail",
    "message",
    "traceback",
    "job_id",
    "id",
    "progress",
    "running",
    "type",
    "code",
    values=STATES | TRACE,
)
CHUNK = objects(
    "id",
    "object",
    "created",
    "model",
    "choices",
    "usage",
    "error",
    "done",
    "message",
    "response",
    "thinking",
    "eval_count",
    "prompt_eval_count",
    values=st.lists(
        objects(
            "index",
            "delta",
            "text",
            "logprobs",
            "finish_reason",
            "tool_calls",
            values=objects("content", "role", "tool_calls", "reasoning", "id"),
        ),
        max_size=2,
    )
    | objects("content", "role", "tool_calls", "code", "type", "message", "http_status_code"),
)
EVENTS = st.lists(
    CHUNK.map(lambda one: b"data: " + encoded(one) + b"\n\n") | st.just(b"data: [DONE]\n\n"), max_size=5
)
LINES = st.lists(CHUNK.map(lambda one: encoded(one) + b"\n"), max_size=5)
HEALTH = objects(
    "boot_id",
    "active_jobs",
    "max_concurrent",
    "direct_queue",
    "jobs",
    "models",
    "status",
    "setup",
    values=st.lists(objects("job_id", "attempt", "name", "started_at"), max_size=3) | STATES,
)
METRICS = st.lists(
    st.sampled_from(
        ["vllm:num_requests_running", "llamacpp:requests_deferred", "tgi_queue_size", "other"]
    ).flatmap(
        lambda name: st.text("0123456789.eE+-", max_size=8).map(
            lambda number: f'{name}{{model="a"}} {number}\n'.encode()
        )
    ),
    max_size=5,
).map(b"".join)
HEADERS = st.sampled_from(
    ["5", "0.5", "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:28:00 -0000", "", "soon"]
)


def model(kind: str) -> ModelSpec:
    return ModelSpec(name="m", pool="p", model_type=kind, max_response_bytes=50_000)


def run_of(kind: str) -> RunRequest:
    endpoint = Endpoint(server="s", url="http://gpu.example/", max_slots=1)
    return RunRequest("job", "attempt", model(kind), endpoint, {"prompt": "a"}, "s/0", 1)


def answer_to_start(kind: str) -> Any:
    def read(body: bytes) -> Finished | Accepted:
        return http_runner.read_start(
            Response(200, {}, body), model(kind), now=NOW, bare_is_id=kind == "async"
        )

    return read


def refused(body: bytes) -> None:
    for status in (400, 404, 409, 424, 429, 500, 502, 503):
        response = Response(status, {"retry-after": "5"}, body)
        assert isinstance(refusals.error_of(response, now=NOW), GpuError)
        assert isinstance(llm_error_of(response, now=NOW), GpuError)


def retry_after(text: str) -> None:
    for headers in ({"retry-after": text}, {"retry-after": text, "date": text}):
        seconds = refusals.retry_after_seconds(Response(503, headers), now=NOW)
        assert seconds is None or seconds >= 0


def cancelled(body: bytes) -> None:
    for status in (200, 202, 404, 410, 500):
        for guessed in (False, True):
            try:
                http_runner.read_cancel(Response(status, {}, body), known=True, guessed=guessed)
            except CancelUnsupported:
                assert guessed


def storable(found: Any) -> None:
    """An accepted result can be stored by every database, with its usage."""
    json.dumps([found.result, found.usage], allow_nan=False).encode()


def streamed(answer: type[OpenAiStream] | type[OllamaStream], kind: str) -> Any:
    def read(body: bytes) -> None:
        grown = answer(run_of(kind))
        for start in range(0, len(body), 17):
            if grown.feed(body[start : start + 17]):
                break
        storable(grown.finished())

    return read


def whole(runner: OpenAiRunner | OllamaRunner) -> Any:
    return lambda body: storable(runner._read(Response(200, {}, body)))


def pushed(kind: str) -> Any:
    runner = runner_for(model(kind))

    def read(body: bytes) -> None:
        said = transport.read_json(body)
        if isinstance(said, Mapping):
            runner.read_pushed(run_of(kind), said)

    return read


def _same(answer: Response, _: str) -> Response:
    return answer


BOX = Endpoint("s", "http://gpu.example/v1", max_slots=2)


def health_of(kind: str) -> Any:
    ask = RUNNERS.all()[kind].health

    def read(body: bytes) -> None:
        for answer in (Response(200, {}, body), Response(404, {}, body), Response(503, {}, body)):
            assert isinstance(ask(model(kind), BOX, partial(_same, answer)), Health)

    return read


def metrics(body: bytes) -> None:
    health = OpenAiRunner.health(model("openai"), BOX, lambda _: Response(200, {}, body))
    assert health.ok
    assert health.active_jobs is None or health.active_jobs >= 0


def frame(body: bytes) -> None:
    """From a model process: a length, and a body that may be another one."""
    for length in (len(body), len(body) + 1, 2**32 - 1):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(struct.pack(">I", length) + body)
            theirs.shutdown(socket.SHUT_WR)
            try:
                assert isinstance(Pipe(ours).receive(), dict)
            except PipeBroken:
                continue


NODE = HttpServer(
    "127.0.0.1", 0, lambda request: reply_json({}), max_body_bytes=1000, max_connections=9, token=""
)


def request_to_node(head: bytes) -> None:
    """An invalid request is only refused, and no exception ends the connection's thread."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(head)
        ours.shutdown(socket.SHUT_WR)
        NODE._serve_connection(theirs, ("127.0.0.1", 1))
        ours.settimeout(5)
        answer = b""
        with suppress(OSError):
            while piece := ours.recv(65536):
                answer += piece
    assert b"HTTP/1.1 500" not in answer


def order(body: bytes) -> None:
    fence = {"x-fence": body.decode("latin-1"), "x-job-id": "job", "x-attempt": "attempt"}
    for headers in ({}, fence):
        with suppress(ValueError):
            _read_order(Request("POST", "/m", headers, body, lambda: False), lambda payload, ctx: None)  # type: ignore[arg-type]


REQUEST = st.sampled_from(
    [
        b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /m HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nX-Fence: 5\r\n\r\n{}",
        b"POST /cancel/job HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nAuthorization: Bearer a\r\n\r\n",
    ]
)
HEAD = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}",
        b"HTTP/1.1 503 Busy\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n",
        b"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ]
)

PARSERS = [
    Parser("bounded JSON", json_text.read, texts_of(JSON), (json_text.NotReadable,)),
    Parser("JSON of a GPU server", transport.read_json, texts_of(JSON), (transport.Unreadable,)),
    Parser("health of a node", http_runner.read_health, texts_of(HEALTH)),
    *(Parser(f"health of {kind}", health_of(kind), texts_of(HEALTH)) for kind in RUNNERS.all()),
    Parser("metrics of an LLM server", metrics, METRICS),
    *(
        Parser(f"answer to the start of {kind}", answer_to_start(kind), texts_of(ANSWER), (GpuError,))
        for kind in ("sync", "async")
    ),
    Parser(
        "poll",
        lambda body: http_runner.read_poll(Response(200, {}, body)),
        texts_of(ANSWER),
        (GpuError, PollFailed),
    ),
    Parser("answer to a cancel", cancelled, texts_of(ANSWER)),
    Parser("refusal", refused, texts_of(ANSWER)),
    Parser("Retry-After of a GPU server", retry_after, HEADERS),
    Parser("head of an answer", parse_simple_head, HEAD),
    Parser("SSE of an LLM server", streamed(OpenAiStream, "openai"), EVENTS.map(b"".join), (GpuError,)),
    Parser("NDJSON of Ollama", streamed(OllamaStream, "ollama"), LINES.map(b"".join), (GpuError,)),
    Parser("whole answer of openai", whole(OpenAiRunner(model("openai"))), texts_of(CHUNK), (GpuError,)),
    Parser("whole answer of ollama", whole(OllamaRunner(model("ollama"))), texts_of(CHUNK), (GpuError,)),
    Parser(
        "health of Cog before a poll",
        lambda body: cog_http.read_state(Response(200, {}, body)),
        texts_of(HEALTH),
        (GpuError,),
    ),
    *(
        Parser(f"push to {kind}", pushed(kind), texts_of(ANSWER), (GpuError,))
        for kind in ("sync", "async", "cog", "openai", "ollama")
    ),
    Parser("request to a node", request_to_node, REQUEST),
    Parser("order of a node's run", order, texts_of(JSON)),
    Parser(
        "frame of a model process", frame, texts_of(objects("said", "attempt", "kind", "value", "failure"))
    ),
]
