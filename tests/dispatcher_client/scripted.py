"""A dispatcher with scripted answers; after them it behaves normally."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

API = "/api/v1"


@dataclass(frozen=True)
class Asked:
    """A received request. key: its Idempotency-Key. path: without the API's root."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Scripted

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        asked = Asked(
            self.command,
            self.path.removeprefix(API),
            {name.lower(): value for name, value in self.headers.items()},
            json.loads(self.rfile.read(length) or b"null"),
        )
        self.close_connection = True
        act = self.script.next_act(asked)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client gave up on a slow one
            act(self, asked)

    do_GET = do_POST = _answer

    def log_message(self, *_: Any) -> None:
        pass

    def say(self, status: int, answer: Any, **headers: str) -> None:
        kind = "application/json" if status < 300 else "application/problem+json"
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        fixed = {"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close"}
        self.send_response(status)
        for name, value in {**fixed, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


Act = Callable[[Handler, Asked], None]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class Scripted:
    """asked: the requests, in order. jobs: the job of each key, committed once."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.jobs: dict[str, str] = {}
        self.status = "queued"
        self._acts: deque[Act] = deque()
        self._lock = threading.Lock()
        handler = type("Bound", (Handler,), {"script": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True).start()

    def will(self, *acts: Act) -> None:
        self._acts.extend(acts)

    @property
    def keys(self) -> list[str]:
        return [asked.key for asked in self.asked]

    def commit(self, asked: Asked) -> str:
        with self._lock:
            return self.jobs.setdefault(asked.key, f"JOB{len(self.jobs)}")

    def next_act(self, asked: Asked) -> Act:
        with self._lock:
            self.asked.append(asked)
            return self._acts.popleft() if self._acts else behave

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


# -- scripted answers -------------------------------------------------------------------------------


def behave(handler: Handler, asked: Asked) -> None:
    if asked.path.startswith("/queue/submit"):
        job_id = handler.script.commit(asked)
        job = {
            "job_id": job_id,
            "status": "queued",
            "outcome": "queued",
            "position": 1,
            "starts_in": {"p50_seconds": 1.5, "p90_seconds": 6.0, "seen": 9},
        }
        batch = [job | {"job_id": f"{job_id}.{n}"} for n in range(len(asked.body.get("jobs", ())))]
        handler.say(202, {"jobs": batch} if asked.path.endswith("batch") else job)
    elif asked.path.endswith("/cancel"):
        handler.say(200, {"job_id": asked.path.split("/")[-2], "outcome": "cancelled"})
    else:
        job_id = asked.path.split("/")[-1].partition("?")[0]
        handler.say(200, {"job_id": job_id, "status": handler.script.status, "result": {"n": 1}})


def drop(handler: Handler, asked: Asked) -> None:
    """Close without an answer."""


def commit_and_drop(handler: Handler, asked: Asked) -> None:
    handler.script.commit(asked)


def raw(content: bytes) -> Act:
    def act(handler: Handler, asked: Asked) -> None:
        handler.wfile.write(content)

    return act


def says(status: int, answer: Any, **headers: str) -> Act:
    return lambda handler, asked: handler.say(status, answer, **headers)


def problem(status: int, code: str, *, retryable: bool = False, pointer: str = "", **headers: str) -> Act:
    answer: dict[str, Any] = {
        "status": status,
        "code": code,
        "detail": f"about {code}",
        "retryable": retryable,
    }
    if pointer:
        answer["errors"] = [{"pointer": pointer, "in": "body", "code": code, "detail": "wrong"}]
    return says(status, answer, **headers)


def hang(until: threading.Event) -> Act:
    """Commit and never answer."""

    def act(handler: Handler, asked: Asked) -> None:
        handler.script.commit(asked)
        until.wait(30)

    return act


def trickle(until: threading.Event) -> Act:
    """Send a byte at a time, each in time, and never finish."""

    def act(handler: Handler, asked: Asked) -> None:
        handler.send_response(202)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        while not until.wait(0.02):
            handler.wfile.write(b" ")

    return act


def streams(*chunks: bytes, then: Callable[[], Any] = lambda: None) -> Act:
    """An event stream of this content that ends after `then`."""

    def act(handler: Handler, asked: Asked) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        handler.end_headers()
        for chunk in chunks:
            handler.wfile.write(chunk)
            handler.wfile.flush()
        then()

    return act
