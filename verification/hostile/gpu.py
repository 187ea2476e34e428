"""A GPU server that answers whatever an attack wants."""

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
class Asked:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Told:
    """pieces: the body, sent one by one. length: of Content-Length; None for that of the pieces, which are
    then put together; -1 for none at all, and the connection's end."""

    pieces: Iterable[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None
    kind: str = "application/json"


def told_json(value: Any, status: int = 200, **headers: str) -> Told:
    return Told((json.dumps(value).encode(),), status, headers)


Behaviour = Callable[[Asked], Told]


class HostileServer:
    """behave: what a POST (a run) is answered, and whatever else it claims by not answering None for it;
    without it `GET /health` is that of a good server."""

    def __init__(self, behave: Callable[[Asked], Told | None]) -> None:
        self.asked: Counter[str] = Counter()
        self.requests: list[Asked] = []
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

    def answer(self, asked: Asked) -> Told:
        self.asked[f"{asked.method} {asked.path.partition('?')[0]}"] += 1
        if len(self.requests) < 1000:
            self.requests.append(asked)
        told = self._behave(asked)
        if told is not None:
            return told
        if asked.method == "GET" and asked.path == "/health":
            return told_json(HEALTHY)
        return told_json({"detail": "no such page"}, 404)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                headers = {name.lower(): value for name, value in self.headers.items()}
                told = server.answer(Asked(self.command, self.path, headers, self.rfile.read(length)))
                pieces, length_told = told.pieces, told.length
                if length_told is None:
                    whole = b"".join(pieces)
                    pieces, length_told = (whole,), len(whole)
                with contextlib.suppress(OSError):
                    self.send_response(told.status)
                    self.send_header("Content-Type", told.kind)
                    for name, value in told.headers.items():
                        self.send_header(name.replace("_", "-"), value)
                    if length_told >= 0:
                        self.send_header("Content-Length", str(length_told))
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
        """Connections that break are part of it."""
