"""The web server in a thread, in front of a small application, and raw connections to it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from dispatcher_project.web.protocol import WebLimits
from dispatcher_project.web.server import BoundedServer, make_server

HEAD = b"GET / HTTP/1.1\r\nHost: here\r\n"
WHOLE = HEAD + b"\r\n"
LARGE = 24 * 1024 * 1024


@dataclass
class Served:
    server: BoundedServer
    counted: dict[str, int]
    now: float = 1000.0
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def port(self) -> int:
        return int(self.server.servers[0].sockets[0].getsockname()[1])

    def connect(self, source: str = "127.0.0.2", send: bytes = b"", receive_buffer: int = 0) -> socket.socket:
        connection = self.stack.enter_context(socket.socket())
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.bind((source, 0))
        connection.settimeout(45)
        connection.connect(("127.0.0.1", self.port))
        if send:
            connection.sendall(send)
        return connection

    def let_pass(self, seconds: float) -> None:
        """The server's clock goes on by so much, and it looks over its connections."""
        self.now += seconds
        looked = threading.Event()

        def look() -> None:
            self.server.connections.sweep()
            looked.set()

        self.server.servers[0].get_loop().call_soon_threadsafe(look)
        assert looked.wait(120)

    def ended(self, reason: str) -> int:
        return self.server.connections.ended[reason]

    def wait_for(self, sign: Callable[[], bool], what: str = "the sign") -> None:
        until = time.monotonic() + 45
        while not sign():
            assert time.monotonic() < until, f"{what} did not come; ended: {self.server.connections.ended}"
            time.sleep(0.01)


def status_and_code(said: bytes) -> tuple[int, str]:
    head, _, body = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["code"]


def answer(connection: socket.socket) -> bytes:
    """One answer with a Content-Length or without a body."""
    said = b""
    while b"\r\n\r\n" not in said:
        part = connection.recv(65536)
        assert part, f"closed after {said!r}"
        said += part
    head, _, body = said.partition(b"\r\n\r\n")
    length = next(
        (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


async def application(scope: Any, receive: Any, send: Any) -> None:
    """`/large`: many bytes at once. `/stream`: without an end. Else the length of the request's body."""
    assert scope["type"] == "http"
    content = b""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        content += message.get("body", b"")
        more = message.get("more_body", False)
    if scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await asyncio.sleep(0.01, True)) and not await _is_gone(receive):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        return
    body = b"x" * LARGE if scope["path"] == "/large" else str(len(content)).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _is_gone(receive: Any) -> bool:
    try:
        return (await asyncio.wait_for(receive(), 0.001))["type"] == "http.disconnect"
    except TimeoutError:
        return False


@contextmanager
def serving(limits: WebLimits, app: Any = application, **options: Any) -> Iterator[Served]:
    counted: dict[str, int] = {}
    server = make_server(
        app, limits, host="127.0.0.1", port=0, count=counted.update, log_config=None, lifespan="off",
        timeout_graceful_shutdown=1, **options,
    )  # fmt: skip
    served = Served(server, counted)
    server.connections.clock = lambda: served.now
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        served.wait_for(lambda: server.started)
        with served.stack:
            yield served
    finally:
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive()
