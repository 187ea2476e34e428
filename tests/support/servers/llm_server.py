"""A real HTTP server with the protocols of vLLM, Ollama and a Cog container, and faults that a test sets.

`log` has the outcome of each request: served, or closed by the client in the middle, as such servers are
stopped.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = ("Once", " upon", " a", " time", " …")
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


@dataclass
class Behaviour:
    """status, body: an answer that refuses the request. words: of an answer. cut_after: after this number of
    words the connection is reset. hang_after: no more words until the client hangs up. slow_first: nothing is
    written until `go` is set. endless: words for ever. garbage, error: written in the middle of the answer.
    no_last_word: the stream ends without its end marker. models: the models it has. metrics: text."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = WORDS
    cut_after: int | None = None
    hang_after: int | None = None
    slow_first: bool = False
    endless: bool = False
    garbage: bytes = b""
    error: Any = None
    no_last_word: bool = False
    one_byte_at_a_time: bool = False
    models: tuple[str, ...] = ("m",)
    metrics: str = ""
    health: int = 200


class LlmServer:
    """asked: method, path, headers and body of each request. log: path and outcome of each request. loaded:
    names of the models that Ollama has in memory."""

    def __init__(self, behaviour: Behaviour | None = None, *, port: int = 0) -> None:
        self.does = behaviour or Behaviour()
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.log: list[tuple[str, str]] = []
        self.loaded: set[str] = set()
        self.wrote, self.go, self.hung_up = threading.Event(), threading.Event(), threading.Event()
        outer = self

        class Handler(_Handler):
            server_ = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def bodies(self) -> list[Any]:
        return [body for method, _, _, body in self.asked if method != "GET"]

    def keep(self, model: str, is_kept: bool) -> None:
        (self.loaded.add if is_kept else self.loaded.discard)(model)

    def __enter__(self) -> LlmServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Gone(Exception):
    pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_: LlmServer

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # of a client that hung up
            super().handle()

    def do_GET(self) -> None:
        outer, does = self.server_, self.server_.does
        outer.asked.append(("GET", self.path, dict(self.headers), None))
        if self.path == "/health":
            self._answer(does.health, b"")
        elif self.path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": name} for name in does.models]})
        elif self.path == "/metrics":
            self._answer(200 if does.metrics else 404, does.metrics.encode())
        elif self.path == "/api/ps":
            self._json(200, {"models": [{"name": name} for name in outer.loaded]})
        elif self.path == "/api/tags":
            self._json(200, {"models": [{"name": name} for name in does.models]})
        else:
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        outer, does = self.server_, self.server_.does
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        outer.asked.append(("POST", self.path, dict(self.headers), body))
        try:
            if does.slow_first:
                self._wait_for_go()
            if does.status != 200:
                self._json(does.status, does.body, does.headers)
            elif body.get("model") not in does.models:
                self._missing(body.get("model"))
            elif self.path.startswith("/api/"):
                self._ollama(body)
            else:
                self._openai(body)
            outer.log.append((self.path, "served"))
        except (_Gone, OSError):
            outer.log.append((self.path, "hung up"))
            outer.hung_up.set()
            self.close_connection = True

    def _missing(self, model: Any) -> None:
        if self.path.startswith("/api/"):
            self._json(404, {"error": f"model '{model}' not found"})
        else:
            error = {"message": f"The model `{model}` does not exist.", "type": "NotFoundError", "code": 404}
            self._json(404, {"object": "error", "error": error})

    # -- OpenAI -------------------------------------------------------------------------------------------

    def _openai(self, body: dict[str, Any]) -> None:
        does, head = self.server_.does, {"id": "c-1", "created": 1, "model": body["model"]}
        if self.path.endswith("/embeddings"):
            data = [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}]
            usage = {"prompt_tokens": 3, "total_tokens": 3}
            self._json(200, {"object": "list", "model": body["model"], "data": data, "usage": usage})
            return
        is_chat = self.path.endswith("/chat/completions")
        text = "".join(does.words)
        if not body.get("stream"):
            said = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
            choices = [{"index": 0, **said, "finish_reason": "stop"}]
            kind = "chat.completion" if is_chat else "text_completion"
            self._json(200, {**head, "object": kind, "choices": choices, "usage": USAGE})
            return
        head["object"] = "chat.completion.chunk" if is_chat else "text_completion"
        self._begin("text/event-stream; charset=utf-8")
        self._event({**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for word in self._growing():
            said = {"delta": {"content": word}} if is_chat else {"text": word}
            self._event({**head, "choices": [{"index": 0, **said, "finish_reason": None}]})
        if does.error is not None:
            self._event({"error": does.error})
        last = {"delta": {}} if is_chat else {"text": ""}
        if not does.no_last_word:
            self._event({**head, "choices": [{"index": 0, **last, "finish_reason": "stop"}]})
            if body.get("stream_options", {}).get("include_usage"):
                self._event({**head, "choices": [], "usage": USAGE})
            self._chunk(b"data: [DONE]\n\n")
        self._end()

    def _event(self, said: Any) -> None:
        self._chunk(b"data: " + json.dumps(said).encode() + b"\r\n\r\n")

    # -- Ollama --------------------------------------------------------------------------------------------

    def _ollama(self, body: dict[str, Any]) -> None:
        does, head = self.server_.does, {"model": body["model"], "created_at": "2026-01-01T00:00:00Z"}
        is_chat = self.path.endswith("/chat")
        counts = {"done": True, "done_reason": "stop", "prompt_eval_count": 7, "eval_count": 5}
        if self.path.endswith("/embed"):
            self._json(200, {**head, "embeddings": [[0.1, 0.2]], "prompt_eval_count": 3})
            return

        if not is_chat and "prompt" not in body:
            self.server_.keep(body["model"], bool(body["keep_alive"]))
            self._json(200, {**head, "response": "", "done": True})
            return

        def say(word: str) -> dict[str, Any]:
            return {"message": {"role": "assistant", "content": word}} if is_chat else {"response": word}

        if body.get("stream") is False:
            self._json(200, {**head, **say("".join(does.words)), **counts})
            return
        self._begin("application/x-ndjson")
        for word in self._growing():
            self._chunk(json.dumps({**head, **say(word), "done": False}).encode() + b"\n")
        if does.error is not None:
            self._chunk(json.dumps({"error": does.error}).encode() + b"\n")
        if not does.no_last_word:
            self._chunk(json.dumps({**head, **say(""), **counts}).encode() + b"\n")
        self._end()

    # -- the wire ----------------------------------------------------------------------------------------

    def _growing(self) -> Any:
        does = self.server_.does
        number = 0
        while does.endless or number < len(does.words):
            if number == does.cut_after:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                self.connection.close()
                raise _Gone
            if number == does.hang_after:
                self._wait_for_hang_up()
            yield does.words[number % len(does.words)]
            number += 1
        if does.garbage:
            self._chunk(does.garbage)

    def _begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        pieces = (
            [data[at : at + 1] for at in range(len(data))] if self.server_.does.one_byte_at_a_time else [data]
        )
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.flush()
        self.server_.wrote.set()

    def _end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def _json(self, status: int, said: Any, headers: dict[str, str] | None = None) -> None:
        self._answer(
            status, json.dumps(said).encode(), {"Content-Type": "application/json", **(headers or {})}
        )

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _wait_for_go(self) -> None:
        while not self.server_.go.wait(0.01):
            self._look_for_hang_up()

    def _wait_for_hang_up(self) -> None:
        while not self.server_.go.wait(0.01):
            self._look_for_hang_up()

    def _look_for_hang_up(self) -> None:
        if select.select([self.connection], [], [], 0)[0]:
            with contextlib.suppress(ConnectionError):
                if self.connection.recv(1, socket.MSG_PEEK):
                    return
            raise _Gone
