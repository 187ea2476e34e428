"""A TCP server that answers each connection as its test says, byte by byte."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from types import TracebackType

Script = Callable[["Visit"], None]


class Visit:
    """One connection. number: from 0."""

    def __init__(self, sock: socket.socket, number: int, server: RawServer) -> None:
        self.sock, self.number, self.server = sock, number, server

    def read_request(self) -> bytes:
        """Head and body; b"" if the client closed."""
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self.sock.recv(65536)
            if not piece:
                return b""
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        while len(body) < length:
            body += self.sock.recv(65536)
        self.server.requests.append(head + b"\r\n\r\n" + body)
        self.server.asked.set()
        return self.server.requests[-1]

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self, body: bytes = b'{"status": "success", "result": 1}', *, head: str = "") -> None:
        self.send(f"HTTP/1.1 200 OK\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def wait_for_hang_up(self) -> None:
        with contextlib.suppress(OSError):
            while self.sock.recv(65536):
                pass
        self.server.hung_up.set()

    def close(self) -> None:
        """With a plain FIN, unless something unread is left."""
        self.sock.close()


class RawServer:
    """requests: whole, in order of arrival. asked, hung_up, closed: signs for the test to wait for."""

    def __init__(self, script: Script, *, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[bytes] = []
        self.visits = 0
        self.asked, self.hung_up, self.closed = threading.Event(), threading.Event(), threading.Event()
        self._script, self._tls = script, tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._socks: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/run"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                visit = Visit(sock, self.visits, self)
                self.visits += 1
                self._socks.append(sock)
                thread = threading.Thread(target=self._serve, args=(visit,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, visit: Visit) -> None:
        with contextlib.suppress(OSError):
            if self._tls is not None:
                visit.sock = self._tls.wrap_socket(visit.sock, server_side=True)
                self._socks.append(visit.sock)
            self._script(visit)
        with contextlib.suppress(OSError):
            visit.sock.close()
        self.closed.set()

    def __enter__(self) -> RawServer:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sock in [self._listener, *self._socks]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(5)
