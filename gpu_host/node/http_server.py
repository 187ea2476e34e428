"""HTTP/1.1 on a thread per connection; every connection can be cut off at once.

A page of any site can post to loopback (`fetch` with `no-cors`), and by DNS rebinding it can read the answers
under a name of its own: what a web page may not ask is refused.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import io
import logging
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from gpu_host.node.connections import Callers, HeadTooLarge, Reading
from gpu_host.node.wire import Reply, Request, reply_error

_OWN_SITE = frozenset({"", "none", "same-origin"})


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


log = logging.getLogger(__name__)

Answer = Callable[[Request], Reply]

_WRITE_SECONDS = 75.0
_NO_DESCRIPTOR_SECONDS = 0.05
_BACKLOG = 512
_MAX_DIGITS = 15


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
