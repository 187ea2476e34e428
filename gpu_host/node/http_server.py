"""HTTP/1.1 on a thread per connection: requests and replies, how many connections there may be, and how long
a request's head or body may take. Every connection can be cut off at once.

A page of any site can post to loopback (`fetch` with `no-cors`), and by DNS rebinding it can read the answers
under a name of its own: what a web page may not ask is refused.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import io
import json
import logging
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

_OWN_SITE = frozenset({"", "none", "same-origin"})

_WRITE_SECONDS = 75.0
_NO_DESCRIPTOR_SECONDS = 0.05
_BACKLOG = 512
_MAX_DIGITS = 15

IDLE_SECONDS = 75.0
"""An answered connection waits so long for a next request. The dispatcher gives an idle one up after 4 s."""
HEAD_SECONDS = 10.0
HEAD_BYTES = 64 * 1024
BODY_IDLE_SECONDS = 10.0
BODY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Request:
    """path: as sent, without the query. headers: lower-case names. gone: whether the caller hung up."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    gone: Callable[[], bool]

    def header(self, name: str) -> str:
        return self.headers.get(name, "").strip()


@dataclass(frozen=True, slots=True)
class Reply:
    """chunks: sent one by one instead of `body`. cut: the connection is closed without a reply. hold: it
    is kept without one until the caller hangs up. on_end: told whether it was sent, as far as known."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    chunks: Iterable[bytes] | None = None
    cut: bool = False
    hold: bool = False
    on_end: Callable[[bool], None] | None = None


CUT = Reply(cut=True)


def reply_json(value: Any, status: int = 200, **headers: str) -> Reply:
    return Reply(status, json.dumps(value).encode(), {k.replace("_", "-"): v for k, v in headers.items()})


def reply_error(status: int, code: str, message: str, **headers: str) -> Reply:
    return reply_json({"status": "error", "code": code, "error": message}, status, **headers)


def foreign_page_error(method: str, headers: Mapping[str, str], *, any_name: bool = False) -> str:
    """Why the request is a web page's, which may not ask a node without a token; empty: it need not be.
    headers: lower-case names. any_name: whether it may be asked under names other than an address and
    localhost."""
    host, origin = headers.get("host", "").strip(), headers.get("origin", "").strip()
    site = headers.get("sec-fetch-site", "").strip().lower()
    if host and not any_name and not _is_address(_host_of(host)):  # a browser always names it
        return "Without a token this node answers at an address or at localhost only, not at another name."
    if origin and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
        return "Without a token this node takes nothing from pages of other origins."
    if site not in _OWN_SITE:
        return "Without a token this node takes nothing from pages of other sites."
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method == "POST" and (origin or site) and kind != "application/json":
        return "Without a token this node takes only application/json from a browser."
    return ""


def _host_of(host: str) -> str:
    """Without the port and brackets; empty where it is no host."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    """Addresses and localhost are no names that DNS may point elsewhere."""
    try:
        ip_address(name)
    except ValueError:
        return name == "localhost"
    return True


Answer = Callable[[Request], Reply]


class HttpServer:
    """port: 0 takes a free one; it is kept for later `open`s. token: what every request has to send as bearer
    token; empty: none has to, and web pages are refused. any_name: whether any host name is good without a
    token."""

    def __init__(
        self,
        host: str,
        port: int,
        answer: Answer,
        *,
        max_body_bytes: int,
        max_connections: int,
        token: str,
        any_name: bool = False,
    ) -> None:
        self.host, self.port, self.answer, self.max_body_bytes = host, port, answer, max_body_bytes
        self.callers = Callers(max_connections)
        self._expected = f"Bearer {token}".encode() if token else b""
        self._any_name = any_name
        self._listener: socket.socket | None = None
        self._doorbell: socket.socket | None = None
        self._accepting: threading.Thread | None = None

    def is_authorized(self, authorization: str) -> bool:
        """Whether a request with that header may ask; in the same time whatever it says."""
        return not self._expected or hmac.compare_digest(authorization.strip().encode(), self._expected)

    def foreign_page_error(self, method: str, headers: Mapping[str, str]) -> str:
        """A token tells the dispatcher from a web page better than any header."""
        return "" if self._expected else foreign_page_error(method, headers, any_name=self._any_name)

    def open(self) -> None:
        """Raises OSError if the port is taken."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.create_server((self.host, self.port), family=family, backlog=_BACKLOG)
        self.port = listener.getsockname()[1]
        self._doorbell, ears = socket.socketpair()
        self._listener = listener
        self._accepting = threading.Thread(
            target=self._accept, args=(listener, ears), name=f"node-{self.port}", daemon=True
        )
        self._accepting.start()

    def close(self) -> None:
        """Accepts nobody any more; connections stay."""
        if self._doorbell is not None and self._accepting is not None:
            self._doorbell.close()
            self._accepting.join()
        self._doorbell = self._listener = self._accepting = None

    def cut(self) -> None:
        """Ends every connection, also in the middle of a reply."""
        self.callers.cut()

    def join(self, timeout_seconds: float) -> None:
        """Waits for the threads of connections that were cut."""
        self.callers.join(timeout_seconds)

    def _accept(self, listener: socket.socket, ears: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, listener, ears:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(ears, selectors.EVENT_READ)
            listener.setblocking(False)
            while all(key.fileobj is listener for key, _ in selector.select()):
                try:
                    connection, address = listener.accept()
                except OSError as error:  # it hung up before it was accepted, or no descriptor is left
                    if error.errno in (errno.EMFILE, errno.ENFILE):
                        self.callers.end_oldest()
                        time.sleep(_NO_DESCRIPTOR_SECONDS)
                    continue
                self._serve(connection, address)

    def _serve(self, connection: socket.socket, address: Any) -> None:
        thread = threading.Thread(
            target=self._converse, args=(connection, address), name=f"node-{self.port}-caller", daemon=True
        )
        if not self.callers.admit(connection, thread):
            connection.close()
            return
        try:
            thread.start()
        except RuntimeError:  # no more threads: the caller sees a closed connection
            self._forget(connection)

    def _converse(self, connection: socket.socket, address: Any) -> None:
        try:
            connection.setblocking(True)
            with contextlib.suppress(OSError):
                _Conversation(connection, address, self)  # type: ignore[arg-type]
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        self.callers.forget(connection)
        connection.close()


class _Conversation(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _WRITE_SECONDS
    disable_nagle_algorithm = True
    server: HttpServer  # type: ignore[assignment]

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._reading = Reading(self.connection)
        self.rfile = io.BufferedReader(self._reading, 64 * 1024)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except HeadTooLarge:
            self.close_connection = True
            self._send(reply_error(431, "head_too_large", "The request's head is too large."))
        self._reading.await_next_head()
        self.server.callers.wait(self.connection)

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_DELETE = do_PUT = do_GET

    def _answer(self) -> None:
        self.server.callers.begin(self.connection)
        if self.headers.defects or len(self.headers.get_all("Content-Length", [])) > 1:
            # what follows would be read as the next request
            self.close_connection = True
            self._send(reply_error(400, "bad_request", "The request's head can't be read."))
            return
        if not self.server.is_authorized(self.headers.get("Authorization", "")):
            self.close_connection = True
            self._send(reply_error(401, "invalid_token", "Send the node's token as bearer token."))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        if why := self.server.foreign_page_error(self.command, headers):
            self.close_connection = True
            self._send(reply_error(403, "stranger", why))
            return
        self._reading.await_body()
        body = self._read_body()
        if isinstance(body, Reply):
            self.close_connection = True
            self._send(body)
            return
        path = urlsplit(self.path).path
        self._send(self._asked(Request(self.command, path, headers, body, self._is_gone)))

    def _asked(self, request: Request) -> Reply:
        try:
            return self.server.answer(request)
        except Exception:
            log.exception("request_broke method=%s path=%s", request.method, request.path)
            return reply_error(500, "internal", "The node's own code broke; see its log.")

    def _read_body(self) -> bytes | Reply:
        if "Transfer-Encoding" in self.headers:
            return reply_error(411, "length_required", "Send a Content-Length.")
        text = self.headers.get("Content-Length", "0")
        if not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS:
            return reply_error(400, "bad_request", "Content-Length is a number.")
        if int(text) > self.server.max_body_bytes:
            return reply_error(413, "too_large", f"At most {self.server.max_body_bytes} bytes.")
        body = self.rfile.read(int(text))
        if len(body) < int(text):
            raise ConnectionError("the caller hung up inside its request")
        return body

    def _send(self, reply: Reply) -> None:
        if reply.hold:
            self.connection.settimeout(None)
            self.connection.recv(1)
        if reply.cut or reply.hold:
            self.close_connection = True
            return
        sent = False
        try:
            if self._is_gone():
                raise ConnectionError("the caller hung up before its reply")
            self._write(reply)
            sent = True
        finally:
            if reply.on_end is not None:
                reply.on_end(sent)

    def _write(self, reply: Reply) -> None:
        length = str(len(reply.body)) if reply.chunks is None else None
        head = [f"HTTP/1.1 {reply.status} {self.responses.get(reply.status, ('',))[0]}"]
        head.append(f"Content-Type: {reply.content_type}")
        head.append(f"Content-Length: {length}" if length else "Transfer-Encoding: chunked")
        head.extend(f"{name}: {value}" for name, value in reply.headers.items())
        if self.close_connection:
            head.append("Connection: close")
        self.connection.settimeout(_WRITE_SECONDS)
        start = ("\r\n".join(head) + "\r\n\r\n").encode("latin-1")
        self.connection.sendall(start + reply.body)  # one packet: no wait between head and body
        if reply.chunks is not None:
            for chunk in reply.chunks:
                self.connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.connection.sendall(b"0\r\n\r\n")

    def _is_gone(self) -> bool:
        try:
            poller = select.poll()
            poller.register(self.connection, select.POLLIN)
            return bool(poller.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)
        except (OSError, ValueError):
            return True

    def log_message(self, format: str, *args: object) -> None:
        """Silent: runs are logged, requests are not."""


class Callers:
    """most: connections at one time, each with a thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._threads: dict[socket.socket, threading.Thread] = {}
        self._idle: dict[socket.socket, None] = {}
        """Those that wait for a request's head, the oldest first."""

    def admit(self, connection: socket.socket, thread: threading.Thread) -> bool:
        """False: there is no room, and it has to be closed."""
        with self._lock:
            if len(self._threads) >= self._most and not self._end_oldest():
                return False
            self._threads[connection] = thread
            self._idle[connection] = None
            return True

    def wait(self, connection: socket.socket) -> None:
        with self._lock:
            if connection in self._threads:
                self._idle[connection] = None

    def begin(self, connection: socket.socket) -> None:
        """Its request's head has come."""
        with self._lock:
            self._idle.pop(connection, None)

    def forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._threads.pop(connection, None)
            self._idle.pop(connection, None)

    def end_oldest(self) -> None:
        with self._lock:
            self._end_oldest()

    def cut(self) -> None:
        """Ends every connection, also in the middle of a reply."""
        with self._lock:
            connections = list(self._threads)
        for connection in connections:
            _shut(connection)

    def join(self, timeout_seconds: float) -> None:
        """Waits for the threads of connections that were cut."""
        until = time.monotonic() + timeout_seconds
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def _end_oldest(self) -> bool:
        """Its thread notices; the connection does not count any more."""
        oldest = next(iter(self._idle), None)
        if oldest is None:
            return False
        del self._idle[oldest], self._threads[oldest]
        _shut(oldest)
        return True


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class HeadTooLarge(ConnectionError):
    """A request's head has more than `HEAD_BYTES`."""


class Reading(io.RawIOBase):
    """Raises TimeoutError where it takes too long, HeadTooLarge."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._idle = False
        self._until = time.monotonic() + HEAD_SECONDS
        self._left: int | None = HEAD_BYTES
        """Bytes of the head that may come. None: it is a body."""

    def readable(self) -> bool:
        return True

    def await_next_head(self) -> None:
        self._idle, self._until, self._left = True, time.monotonic() + IDLE_SECONDS, HEAD_BYTES

    def await_body(self) -> None:
        self._idle, self._until, self._left = False, time.monotonic() + BODY_SECONDS, None

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        patience = self._until - time.monotonic()
        if patience <= 0:
            raise TimeoutError
        self._connection.settimeout(patience if self._left is not None else min(patience, BODY_IDLE_SECONDS))
        if self._left is not None:
            if not self._left:
                raise HeadTooLarge
            buffer = buffer[: self._left]
        count = self._connection.recv_into(buffer)
        if self._left is not None:
            self._left -= count
        if self._idle and count:
            self._idle, self._until = False, time.monotonic() + HEAD_SECONDS
        return count
