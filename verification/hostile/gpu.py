"""A GPU server whose answers are chosen by an attack."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HEALTHY = {"status": "ok", "active_jobs": 0, "max_concurrent": 8, "direct_queue": 0, "jobs": []}


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request of the dispatcher."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class CraftedReply:
    """An answer, possibly broken. pieces: the body, sent one by one. length: value of Content-Length; None
    for that of the pieces, which are then joined; -1 for no such header, with the connection closed at the
    end."""

    pieces: Iterable[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None
    kind: str = "application/json"


def json_reply(value: Any, status: int = 200, **headers: str) -> CraftedReply:
    """Return an answer with a JSON body."""
    return CraftedReply((json.dumps(value).encode(),), status, headers)


Behaviour = Callable[[ReceivedRequest], CraftedReply]


class HostileServer:
    """A GPU server of the attacker. behave: returns the answer to a POST (a run), and to other requests
    unless it returns None; by default `GET /health` is that of a healthy server."""

    def __init__(self, behave: Callable[[ReceivedRequest], CraftedReply | None]) -> None:
        self.asked: Counter[str] = Counter()
        self.requests: list[ReceivedRequest] = []
        self._behave = behave
        self._http = _Server(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/run"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, asked: ReceivedRequest) -> CraftedReply:
        """Return the answer to a request."""
        self.asked[f"{asked.method} {asked.path.partition('?')[0]}"] += 1
        if len(self.requests) < 1000:
            self.requests.append(asked)
        reported = self._behave(asked)
        if reported is not None:
            return reported
        if asked.method == "GET" and asked.path == "/health":
            return json_reply(HEALTHY)
        return json_reply({"detail": "no such page"}, 404)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                headers = {name.lower(): value for name, value in self.headers.items()}
                reported = server.answer(
                    ReceivedRequest(self.command, self.path, headers, self.rfile.read(length))
                )
                pieces, declared_length = reported.pieces, reported.length
                if declared_length is None:
                    whole = b"".join(pieces)
                    pieces, declared_length = (whole,), len(whole)
                with contextlib.suppress(OSError):
                    self.send_response(reported.status)
                    self.send_header("Content-Type", reported.kind)
                    for name, value in reported.headers.items():
                        self.send_header(name.replace("_", "-"), value)
                    if declared_length >= 0:
                        self.send_header("Content-Length", str(declared_length))
                    else:
                        self.send_header("Connection", "close")
                        self.close_connection = True
                    self.end_headers()
                    for piece in pieces:
                        self.wfile.write(piece)
                    return
                self.close_connection = True

            do_GET = do_POST = do_PUT = _serve

            def log_message(self, *_: object) -> None:
                pass

        return Handler


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections: attacks cause them."""
