"""Limits of the web process's connections: their number, and timeouts for everything that a client can delay.

At the limit the connection that has waited longest for a request's head is closed, then those whose clients
are slowest with a body or an answer. If there is none of either, the new connection is refused.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import socket
import struct
import sys
import termios
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from typing import Any, Protocol, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.utils import get_remote_addr, is_ssl

from dispatcher_project.settings.dispatcher import DispatcherSettings
from dispatcher_project.web.direct_body import KEY as DIRECT_KEY
from dispatcher_project.web.direct_body import DirectBody
from foundation.http_api.problems import MEDIA_TYPE, Problem
from foundation.network import network_of

MIN_READ_BYTES = 32 * 1024
"""Bytes of its answer that a client must read in each `read_seconds`."""
FREE_CHUNKS = 1024
"""Chunks of a body before their average size is checked."""
MIN_CHUNK_BYTES = 64
"""Smallest average size of chunks: each costs the event loop as much as a small request."""
EVICTED_TOGETHER = 32
"""Connections closed per scan of all connections."""
_SCAN_SECONDS = 0.1
"""Shortest time between two scans."""
RETRY_SECONDS = 2.0
_BYTES_ACKED = struct.Struct("=Q")
_BYTES_ACKED_AT = 120
"""Offset of `tcpi_bytes_acked` in Linux' `struct tcp_info`."""
Application = Callable[[Any, Any, Any], Awaitable[None]]
GONE_KEY = "dispatcher.client_gone"
"""Key in a request's scope: a function that returns True once the connection is closed. Set only by this
server."""
DROP_KEY = "dispatcher.drop_client"
"""Key in a request's scope: a function that closes the connection now, without a further answer. Set only by
this server."""
BEGUN_KEY = "dispatcher.answer_begun"
"""Key in a request's scope: a function that returns True once the answer's head is sent. Set only by this
server."""


@dataclass(frozen=True, slots=True)
class WebLimits:
    """Limits of the web server; see `DISPATCHER_WEB_*` in dispatcher_project/settings/dispatcher.py."""

    connections: int = 4096
    per_address: int = 512
    head_seconds: float = 10.0
    idle_seconds: float = 5.0
    read_seconds: float = 30.0
    unsent_bytes: int = 128 * 1024 * 1024
    head_bytes: int = 64 * 1024
    url_bytes: int = 16 * 1024
    headers: int = 100

    @classmethod
    def of(cls, settings: DispatcherSettings) -> WebLimits:
        return cls(
            connections=settings.web_connections,
            per_address=settings.web_connections_per_address,
            head_seconds=settings.web_head_seconds,
            idle_seconds=settings.web_idle_seconds,
            read_seconds=settings.web_read_seconds,
            unsent_bytes=settings.web_unsent_bytes,
            head_bytes=settings.web_head_bytes,
            url_bytes=settings.web_url_bytes,
            headers=settings.web_headers,
        )


class TooManyChunks(h11.RemoteProtocolError):
    """The body has many tiny chunks."""


class _StrictBodies(h11.Connection):
    """Raises TooManyChunks for a body whose chunks are too small on average, and RemoteProtocolError for a
    request with two lengths of its body, by which a proxy may take another end (RFC 9112, 6.1)."""

    chunks = 0
    chunk_bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if type(event) is h11.Data:
            self.chunks += event.chunk_end
            self.chunk_bytes += len(event.data)
            if self.chunks > FREE_CHUNKS + self.chunk_bytes // MIN_CHUNK_BYTES:
                raise TooManyChunks(f"The body has chunks of less than {MIN_CHUNK_BYTES} bytes on average.")
        elif type(event) is h11.EndOfMessage:
            self.chunks = self.chunk_bytes = 0
        elif type(event) is h11.Request:
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("Content-Length and Transfer-Encoding in one request")
        return event


class BoundedProtocol(H11Protocol):
    """One connection: uvicorn's h11 protocol with limits. open_connections: all connections of the
    process."""

    def __init__(self, open_connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._all = open_connections
        self._limits = open_connections.limits
        self.address_name = ""
        self.since = 0.0
        """When the current phase began: waiting for a request's head, or serving the request."""
        self._waits = True
        """True while the server waits for a request's head."""
        self._head_bytes = 0
        self._answered_one = False
        self._slow_since = 0.0
        """When the client last read `MIN_READ_BYTES`; 0: no bytes wait to be sent."""
        self._taken = 0
        self._direct: DirectBody | None = None
        self._begin_parser()

    def _begin_parser(self) -> None:
        self.conn = _StrictBodies(h11.SERVER, self._limits.head_bytes)

    @property
    def waits_for_client(self) -> bool:
        """True while the server waits for a request, the rest of its body, or the client to read its
        answer."""
        cycle = self.cycle
        return self._waits or cycle is None or cycle.more_body or self._slow_since > 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.since = self._all.clock()
        peer = get_remote_addr(transport)
        if not self._all.admit(self, peer[0] if peer else ""):
            self.transport = transport
            transport.write(too_many_connections())
            transport.close()
            return
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.forget(self)
        if self._direct is not None:
            self._direct.cut()
        self._forget_direct()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._waits:
            super().data_received(data)
            return
        before, most = self.cycle, self._limits.head_bytes
        while data and not self.transport.is_closing():
            part, data = data[:most], data[most:]  # in parts, so that a longer head is not parsed
            self._head_bytes += len(part)
            super().data_received(part)
            if self._waits and self.cycle is not before:
                self._has_head()

    def on_response_complete(self) -> None:
        answered = self.cycle
        if self._direct is not None and self._direct.took_body:
            self._begin_parser()
        self._forget_direct()
        self._answered_one = self._waits = True
        self._head_bytes = 0
        self.since = self._all.clock()
        super().on_response_complete()
        if self.cycle is not answered:  # the next request's head has already arrived
            self._has_head()
        elif not self.transport.is_closing():
            self._all.wait(self)

    def _has_head(self) -> None:
        self._waits = False
        cycle = self.cycle
        if cycle is not None:
            scope = cast("dict[str, Any]", self.scope)
            scope[GONE_KEY] = lambda: cycle.disconnected
            scope[DROP_KEY] = lambda: _drop(cycle)
            scope[BEGUN_KEY] = lambda: cycle.response_started
            if not is_ssl(self.transport):
                scope[DIRECT_KEY] = self._lend_socket
        self.since = self._all.clock()
        self._all.begin(self)

    def _lend_socket(self) -> DirectBody:
        """Return what moves the bodies of the current request past the event loop."""
        assert self.cycle is not None
        self._direct = DirectBody(self, self.cycle)
        return self._direct

    def _forget_direct(self) -> None:
        """Break the reference cycle of this connection, its scope and the body."""
        if self.scope is not None:
            cast("dict[str, Any]", self.scope).pop(DIRECT_KEY, None)
        self._direct = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._all.unsent(self, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._all.unsent(self, 0)

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when the parser refuses the request."""
        cycle, error = self.cycle, sys.exception()
        if cycle is not None and not cycle.response_complete and cycle.response_started:
            self.transport.abort()
        elif isinstance(error, TooManyChunks):
            self._refuse(Reason.CHUNKS_TOO_SMALL, bad_request(str(error)))
        elif self._waits and self._head_bytes > self._limits.head_bytes:
            has_url = b"\n" in self.conn.trailing_data[0]
            most = self._limits.head_bytes
            self._refuse(Reason.HEAD_TOO_LARGE, head_too_large(most) if has_url else url_too_long(most))
        else:
            super().send_400_response(msg)

    def _refuse(self, reason: str, answer: bytes) -> None:
        self._all.ended[reason] += 1
        self.transport.write(answer)
        self.transport.close()

    def overdue(self, now: float) -> str:
        """Return the `Reason` to end the connection now, or "" to keep it."""
        if unsent := self._unsent():
            if self._answered_one:
                self.since = now  # the wait for the next request begins at the end of the answer
            return Reason.READS_SLOWLY if self._reads_slowly(unsent, now) else ""
        self._slow_since = 0.0
        patience = self._limits.head_seconds + (self._limits.idle_seconds if self._answered_one else 0.0)
        return Reason.HEAD_LATE if self._waits and now - self.since >= patience else ""

    def _unsent(self) -> int:
        buffered = self.transport.get_write_buffer_size()
        return buffered or bytes_in_kernel(self.transport.get_extra_info("socket"))

    def _reads_slowly(self, unsent: int, now: float) -> bool:
        acknowledged = bytes_acknowledged(self.transport.get_extra_info("socket"))
        taken = -unsent if acknowledged is None else acknowledged
        if not self._slow_since or taken - self._taken >= MIN_READ_BYTES:
            self._slow_since, self._taken = now, taken
        return now - self._slow_since >= self._limits.read_seconds

    def end(self, reason: str) -> None:
        """Close the connection now; a client that has not sent its first head gets the reason as an
        answer."""
        self._all.ended[reason] += 1
        self._all.forget(self)
        owes_head = self._waits and not self._answered_one and not self.transport.is_closing()
        if owes_head and reason == Reason.HEAD_LATE:
            self.transport.write(head_too_slow(self._limits.head_seconds))
        elif owes_head and reason == Reason.EVICTED:
            self.transport.write(too_many_connections())
        else:
            self.transport.abort()
        self.transport.close()

    def drop(self) -> None:
        """Close the connection now, without a further answer."""
        self.transport.abort()


class Reason:
    """Reasons to end a connection: labels of dispatcher_web_connections_ended_total."""

    HEAD_LATE = "head_late"
    EVICTED = "evicted"
    REFUSED = "refused"
    READS_SLOWLY = "reads_slowly"
    UNSENT_BYTES = "unsent_bytes"
    HEAD_TOO_LARGE = "head_too_large"
    CHUNKS_TOO_SMALL = "chunks_too_small"
    NO_DESCRIPTORS = "no_descriptors"


class Connection(Protocol):
    """The part of `BoundedProtocol` that `Connections` uses."""

    address_name: str
    since: float

    @property
    def waits_for_client(self) -> bool: ...

    def overdue(self, now: float) -> str: ...

    def end(self, reason: str) -> None: ...

    def drop(self) -> None: ...


@dataclass(slots=True)
class Address:
    """Connections of one client address. open: their number. waiting: those that wait for a request, oldest
    first."""

    open: int = 0
    waiting: dict[Connection, None] = field(default_factory=dict)


class Connections:
    """All open connections of the process, and their limits.

    is_proxy: returns True for an address whose connections belong to many clients; the limit per address does
    not apply to it.
    """

    def __init__(
        self,
        limits: WebLimits,
        is_proxy: Callable[[str], bool] = lambda address: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.clock = clock
        self.ended: Counter[str] = Counter()
        """Ended connections by reason, since the last write to the database."""
        self._is_proxy = is_proxy
        self._open: dict[Connection, Address] = {}
        self._waiting: dict[Connection, None] = {}
        self._addresses: dict[str, Address] = {}
        self._unsent: dict[Connection, int] = {}
        self._unsent_bytes = 0
        self._next_scan_at = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Connection, host: str) -> bool:
        """Register a new connection, closing another one if needed; return False if it must be refused."""
        name = "" if self._is_proxy(host) else network_of(host)
        address = self._addresses.setdefault(name, Address())
        if name and address.open >= self.limits.per_address and not self._evict_oldest(address.waiting):
            return self._refuse(name, address)
        if len(self._open) >= self.limits.connections and not (
            self._evict_oldest(self._waiting) or self._evict_slow()
        ):
            return self._refuse(name, address)
        self._addresses[name] = address  # the eviction may have removed it
        connection.address_name = name
        self._open[connection] = address
        address.open += 1
        self.wait(connection)
        return True

    def wait(self, connection: Connection) -> None:
        """Note that the server waits for the connection's next request."""
        address = self._open.get(connection)
        if address is not None:
            self._waiting[connection] = None
            address.waiting[connection] = None

    def begin(self, connection: Connection) -> None:
        """Note that a request's head has arrived."""
        address = self._open.get(connection)
        if address is not None and connection in self._waiting:
            del self._waiting[connection], address.waiting[connection]

    def forget(self, connection: Connection) -> None:
        self.begin(connection)
        self.unsent(connection, 0)
        address = self._open.pop(connection, None)
        if address is None:
            return
        address.open -= 1
        if not address.open:
            self._addresses.pop(connection.address_name, None)

    def unsent(self, connection: Connection, size: int) -> None:
        """Note the number of unsent bytes. Over the limit of all connections, those that wait longest are
        ended."""
        self._unsent_bytes += size - self._unsent.pop(connection, 0)
        if size:
            self._unsent[connection] = size
        while self._unsent_bytes > self.limits.unsent_bytes and len(self._unsent) > 1:
            oldest = next(iter(self._unsent))
            self._unsent_bytes -= self._unsent.pop(oldest)
            oldest.end(Reason.UNSENT_BYTES)

    def sweep(self) -> None:
        """End overdue connections; called every second."""
        now = self.clock()
        for connection in list(self._open):
            reason = connection.overdue(now)
            if reason:
                connection.end(reason)

    def free_descriptors(self) -> None:
        """End the oldest connections that wait for a head, because the process has no file descriptor
        left."""
        for connection in list(self._waiting)[:EVICTED_TOGETHER]:
            connection.end(Reason.NO_DESCRIPTORS)

    def drop_all(self) -> None:
        """Close all connections now, with what waits to be sent: the server stops."""
        for connection in list(self._open):
            connection.drop()

    def _refuse(self, name: str, address: Address) -> bool:
        if not address.open:
            self._addresses.pop(name, None)
        self.ended[Reason.REFUSED] += 1
        return False

    def _evict_oldest(self, waiting: dict[Connection, None]) -> bool:
        oldest = next(iter(waiting), None)
        if oldest is not None:
            oldest.end(Reason.EVICTED)
        return oldest is not None

    def _evict_slow(self) -> bool:
        """End the slowest connections. It scans all of them, so at most every `_SCAN_SECONDS`."""
        now = self.clock()
        if now < self._next_scan_at:
            return False
        self._next_scan_at = now + _SCAN_SECONDS
        slow = [connection for connection in self._open if connection.waits_for_client]
        slow.sort(key=lambda connection: connection.since)
        for connection in slow[:EVICTED_TOGETHER]:
            connection.end(Reason.EVICTED)
        return bool(slow)


def within_heads(application: Application, limits: WebLimits) -> Application:
    """Wrap an ASGI application with limits on headers and URL; the protocol limits the head as a whole."""

    async def bounded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            if len(scope["headers"]) > limits.headers:
                detail = f"The request has more than {limits.headers} headers."
                return await _send_problem(send, Problem(431, "head_too_large", detail))
            if len(scope["raw_path"]) + len(scope["query_string"]) > limits.url_bytes:
                detail = f"The URL has more than {limits.url_bytes} bytes."
                return await _send_problem(send, Problem(414, "url_too_long", detail))
        try:
            await application(scope, receive, send)
        except asyncio.CancelledError:  # by the server, which stops
            await _end_cut(scope, send)

    return bounded


async def _end_cut(scope: Any, send: Any) -> None:
    """End a request that is cut off: with a problem if its answer has not begun. Raises CancelledError under
    another server."""
    if DROP_KEY not in scope:
        raise asyncio.CancelledError
    if scope[BEGUN_KEY]():
        drop_client(scope)
        return
    detail = "The web process stops before the outcome is known. Repeat the request."
    await _send_problem(send, Problem(503, "web_stopping", detail, retry_after_seconds=RETRY_SECONDS))


async def _send_problem(send: Any, problem: Problem) -> None:
    content = problem.as_bytes()
    headers = {"content-type": MEDIA_TYPE, "content-length": str(len(content)), "connection": "close"}
    headers |= {name.lower(): value for name, value in problem.headers.items()}
    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": lines})
    await send({"type": "http.response.body", "body": content, "more_body": False})


@cache
def too_many_connections() -> bytes:
    detail = "Too many connections are open, of this address or in all. Try again."
    return _wire(Problem(503, "too_many_connections", detail, retry_after_seconds=RETRY_SECONDS))


@cache
def head_too_slow(seconds: float) -> bytes:
    return _wire(Problem(408, "head_too_slow", f"The request's head did not arrive within {seconds:g} s."))


@cache
def head_too_large(most: int) -> bytes:
    return _wire(Problem(431, "head_too_large", f"The request's head has more than {most} bytes."))


@cache
def url_too_long(most: int) -> bytes:
    return _wire(Problem(414, "url_too_long", f"The URL has more than {most} bytes."))


@cache
def bad_request(detail: str) -> bytes:
    return _wire(Problem(400, "bad_request", detail))


def _wire(problem: Problem) -> bytes:
    content = problem.as_bytes()
    headers = {"Content-Type": MEDIA_TYPE, "Content-Length": str(len(content)), "Connection": "close"}
    lines = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in {**headers, **problem.headers}.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def bytes_in_kernel(sock: Any) -> int:
    """Return the bytes written to the socket that are not acknowledged yet; 0 if that can't be read."""
    if sys.platform != "linux":
        return 0
    waiting = array.array("i", [0])
    try:
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, waiting)
    except OSError:
        return 0
    return waiting[0]


def bytes_acknowledged(sock: Any) -> int | None:
    """Return the bytes that the client's system has acknowledged on this connection; None if that can't be
    read."""
    if sys.platform != "linux":
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED_AT + _BYTES_ACKED.size)
        return int(_BYTES_ACKED.unpack_from(info, _BYTES_ACKED_AT)[0])
    except (OSError, struct.error):
        return None


def is_client_gone(scope: Mapping[str, Any]) -> bool:
    """Return True if the request's connection is closed; always False under another server."""
    is_gone: Callable[[], bool] | None = scope.get(GONE_KEY)
    return is_gone is not None and is_gone()


def drop_client(scope: Mapping[str, Any]) -> None:
    """Close the request's connection now, without a further answer; another server closes it itself."""
    drop: Callable[[], None] | None = scope.get(DROP_KEY)
    if drop is not None:
        drop()


def _drop(cycle: RequestResponseCycle) -> None:
    cycle.disconnected = True  # else uvicorn takes the missing answer for an error of the application
    cycle.transport.abort()
