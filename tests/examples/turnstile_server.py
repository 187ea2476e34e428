"""A Turnstile server, as examples/runner_package/README.md describes it."""

from __future__ import annotations

import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class TurnstileServer:
    """tickets: their states by id. seen: the headers of each start. refuse: the status of the next answers to
    starts. breaks: answers to polls are not JSON."""

    def __init__(self, *, slots: int = 2) -> None:
        self.slots = slots
        self.is_open = True
        self.tickets: dict[str, dict[str, Any]] = {}
        self.seen: list[dict[str, str]] = []
        self.refuse = 0
        self.breaks = False
        self._numbers = itertools.count(1)
        outer = self

        class Handler(_Handler):
            turnstile = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def turning(self) -> int:
        return sum(ticket["state"] == "turning" for ticket in self.tickets.values())

    def take(self, asked: Any) -> tuple[int, Any]:
        """The payload decides: ``hold``, ``fail``; otherwise its echo is the output."""
        if self.refuse:
            return self.refuse, {"error": "refused"}
        if self.turning() >= self.slots:
            return 503, {"error": "full"}
        payload, number = asked["input"], f"t/{next(self._numbers)}"
        if payload.get("hold"):
            self.tickets[number] = {"state": "turning"}
        elif payload.get("fail"):
            self.tickets[number] = {"state": "jammed", "reason": payload["fail"]}
        else:
            self.tickets[number] = {"state": "done", "output": payload}
        return 201, {"ticket": number}

    def __enter__(self) -> TurnstileServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    turnstile: TurnstileServer

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.turnstile.seen.append(dict(self.headers))
        self._say(*self.turnstile.take(asked))

    def do_GET(self) -> None:
        if self.path == "/turnstile":
            is_open, turning = self.turnstile.is_open, self.turnstile.turning()
            self._say(200, {"open": is_open, "turning": turning, "since": "2026-01-01"})
        elif self.turnstile.breaks:
            self._write(200, b"{nonsense")
        else:
            ticket = self.turnstile.tickets.get(self._ticket())
            self._say(200 if ticket else 404, ticket)

    def do_DELETE(self) -> None:
        ticket = self.turnstile.tickets.get(self._ticket())
        if ticket is not None:
            ticket |= {"state": "jammed", "reason": "cancelled"}
        self._say(204 if ticket else 404, None)

    def _ticket(self) -> str:
        return self.path.removeprefix("/tickets/").replace("%2F", "/")

    def _say(self, status: int, said: Any) -> None:
        self._write(status, b"" if status == 204 else json.dumps(said).encode())

    def _write(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
