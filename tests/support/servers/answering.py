"""A model server whose answers are sent as a test says, in pieces that are made on the way."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.servers.handlers import QuietHandler, serve_handler


@dataclass
class Answering:
    """post, get: return the body of an answer, or its pieces. headers: of all answers; without a length they
    end with their connection. seen: requests, as method and path, with headers."""

    post: Callable[[Any], bytes | Iterable[bytes]] = lambda payload: b"{}"
    get: Callable[[str], bytes | Iterable[bytes]] = lambda path: b"{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""


@contextmanager
def answering(server: Answering) -> Iterator[Answering]:
    class Route(QuietHandler):
        def do_POST(self) -> None:
            payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(server.post(payload))

        def do_GET(self) -> None:
            self._answer(server.get(self.path))

        def _answer(self, body: bytes | Iterable[bytes]) -> None:
            server.seen.append((f"{self.command} {self.path}", dict(self.headers.items())))
            self.send_response(server.status)
            headers = dict(server.headers)
            if isinstance(body, bytes):
                headers.setdefault("Content-Length", str(len(body)))
                body = [body]
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                for piece in body:
                    self.wfile.write(piece)

    with serve_handler(Route) as server.url:
        yield server
