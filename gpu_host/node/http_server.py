"""An HTTP/1.1 server with a thread per connection, a limit of connections, and time limits for a request's
head and body. Every connection can be cut off at once.

A page of any site can post to loopback (`fetch` with `no-cors`), and by DNS rebinding it can read the answers
under a name of its own. So requests that web pages must not send are refused.
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

from foundation.threaded_http import DEFAULT_TIMES, Connections, HeadTooLarge, RequestTimes, TimedReader

log = logging.getLogger(__name__)

_OWN_SITE = frozenset({"", "none", "same-origin"})

_WRITE_SECONDS = 75.0
_NO_DESCRIPTOR_SECONDS = 0.05
_BACKLOG = 512
_MAX_DIGITS = 15


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. path: as sent, without the query. headers: lower-case names. gone: returns True once
    the caller has hung up."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    gone: Callable[[], bool]

    def header(self, name: str) -> str:
        return self.headers.get(name, "").strip()


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. chunks: sent one by one instead of `body`. cut: close the connection without a reply. hold:
    keep it open without a reply until the caller hangs up. on_end: called with True if the reply was sent, as
    far as known."""

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
    """Return a reply with a JSON body. headers: with ``_`` for ``-``."""
    return Reply(status, json.dumps(value).encode(), {k.replace("_", "-"): v for k, v in headers.items()})


def reply_error(status: int, code: str, message: str, **headers: str) -> Reply:
    """Return a reply with an error in JSON. headers: with ``_`` for ``-``."""
    return reply_json({"status": "error", "code": code, "error": message}, status, **headers)


def foreign_page_error(method: str, headers: Mapping[str, str], *, any_name: bool = False) -> str:
    """Return why the request may come from a foreign web page and is refused without a token; empty: it is
    fine.

    headers: lower-case names. any_name: accept host names other than an address and localhost."""
    host, origin = headers.get("host", "").strip(), headers.get("origin", "").strip()
    site = headers.get("sec-fetch-site", "").strip().lower()
    if host and not any_name and not _is_address(_host_of(host)):  # browsers always send Host
        return "Without a token this node answers at an address or at localhost only, not at another name."
    if origin and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
        return "Without a token this node refuses requests from pages of other origins."
    if site not in _OWN_SITE:
        return "Without a token this node refuses requests from pages of other sites."
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method == "POST" and (origin or site) and kind != "application/json":
        return "Without a token this node accepts only application/json from a browser."
    return ""


def _host_of(host: str) -> str:
    """Return the host without port and brackets; empty if it is not valid."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    """Return True for an IP address or localhost: DNS can't point them elsewhere."""
    try:
        ip_address(name)
    except ValueError:
        return name == "localhost"
    return True


Answer = Callable[[Request], Reply]


class HttpServer:
    """The listener. port: 0 takes a free one, which is kept when opened again. answer: returns the reply to a
    request.

    token: bearer token that every request must send; empty: none, and requests of foreign web pages are
    refused. any_name: accept any host name without a token."""

    def __init__(
        self,
        host: str,
        port: int,
        answer: Answer,
        *,
        max_body_bytes: int,
        max_connections: int,
        token: str,
        times: RequestTimes = DEFAULT_TIMES,
        any_name: bool = False,
    ) -> None:
        self.host, self.port, self.answer, self.max_body_bytes = host, port, answer, max_body_bytes
        self.times = times
        self.connections = Connections(max_connections)
        self._expected = f"Bearer {token}".encode() if token else b""
        self._any_name = any_name
        self._listener: socket.socket | None = None
        self._wakeup: socket.socket | None = None
        self._accepting: threading.Thread | None = None

    def is_authorized(self, authorization: str) -> bool:
        """Return True if the header has the token; compares in constant time."""
        return not self._expected or hmac.compare_digest(authorization.strip().encode(), self._expected)

    def foreign_page_error(self, method: str, headers: Mapping[str, str]) -> str:
        """Return why the request is refused as one of a foreign web page; with a token never."""
        return "" if self._expected else foreign_page_error(method, headers, any_name=self._any_name)

    def open(self) -> None:
        """Listen and accept connections in a thread. Raises OSError if the port is taken."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.create_server((self.host, self.port), family=family, backlog=_BACKLOG)
        self.port = listener.getsockname()[1]
        self._wakeup, wakeup = socket.socketpair()
        self._listener = listener
        self._accepting = threading.Thread(
            target=self._accept, args=(listener, wakeup), name=f"node-{self.port}", daemon=True
        )
        self._accepting.start()

    def close(self) -> None:
        """Accept no more connections; those that are open stay."""
        if self._wakeup is not None and self._accepting is not None:
            self._wakeup.close()
            self._accepting.join()
        self._wakeup = self._listener = self._accepting = None

    def cut(self) -> None:
        """End every connection, also in the middle of a reply."""
        self.connections.cut()

    def join(self, timeout_seconds: float) -> None:
        """Wait for the threads of connections that were cut."""
        self.connections.join(timeout_seconds)

    def _accept(self, listener: socket.socket, wakeup: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, listener, wakeup:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(wakeup, selectors.EVENT_READ)
            listener.setblocking(False)
            while all(key.fileobj is listener for key, _ in selector.select()):
                try:
                    connection, address = listener.accept()
                except OSError as error:  # the caller hung up before, or no file descriptor is left
                    if error.errno in (errno.EMFILE, errno.ENFILE):
                        self.connections.end_oldest()
                        time.sleep(_NO_DESCRIPTOR_SECONDS)
                    continue
                self._serve(connection, address)

    def _serve(self, connection: socket.socket, address: Any) -> None:
        thread = threading.Thread(
            target=self._serve_connection,
            args=(connection, address),
            name=f"node-{self.port}-caller",
            daemon=True,
        )
        if not self.connections.admit(connection, thread):
            connection.close()
            return
        try:
            thread.start()
        except RuntimeError:  # no more threads: the caller sees a closed connection
            self._forget(connection)

    def _serve_connection(self, connection: socket.socket, address: Any) -> None:
        try:
            connection.setblocking(True)
            with contextlib.suppress(OSError):
                _RequestHandler(connection, address, self)  # type: ignore[arg-type]
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        self.connections.forget(connection)
        connection.close()


class _RequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _WRITE_SECONDS
    disable_nagle_algorithm = True
    server: HttpServer  # type: ignore[assignment]

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._reading = TimedReader(self.connection, self.server.times)
        self.rfile = io.BufferedReader(self._reading, 64 * 1024)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except HeadTooLarge:
            self.close_connection = True
            self._send(reply_error(431, "head_too_large", "The request's head is too large."))
        self._reading.await_next_head()
        self.server.connections.wait(self.connection)

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_DELETE = do_PUT = do_GET

    def _answer(self) -> None:
        self.server.connections.begin(self.connection)
        if self.headers.defects or len(self.headers.get_all("Content-Length", [])) > 1:
            # the body would be read as the next request
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
        self._send(self._route(Request(self.command, path, headers, body, self._is_gone)))

    def _route(self, request: Request) -> Reply:
        try:
            return self.server.answer(request)
        except Exception:
            log.exception("request_broke method=%s path=%s", request.method, request.path)
            return reply_error(500, "internal", "The node failed on this request; see its log.")

    def _read_body(self) -> bytes | Reply:
        if "Transfer-Encoding" in self.headers:
            return reply_error(411, "length_required", "Send a Content-Length.")
        text = self.headers.get("Content-Length", "0")
        if not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS:
            return reply_error(400, "bad_request", "Content-Length must be a number.")
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
