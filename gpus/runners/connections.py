"""Connections to GPU servers: opens them, enforces deadlines, aborts them from other threads, and pools
them."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from foundation import network
from gpus.errors import ConnectFailed, ConnectRefused, ConnectTimedOut, Interrupted, ServerLost

T = TypeVar("T")

_SLICE_MS = 50
_TOO_LATE = "the deadline has passed"
_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
_TCP_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)
_ESTABLISHED = 1
"""State in the first byte of Linux' `tcp_info` while neither side has closed its half."""
_BYTES_RECEIVED = slice(128, 136)
"""Bytes received in total, in `tcp_info`; empty or zero if the kernel does not count them."""
MAX_IDLE_SECONDS = 4.0
"""Servers close idle connections after 5 s (uvicorn, Node.js) or later. Ours are closed before that, so that
a request rarely meets a connection that is being closed."""
FRESH_SECONDS = 0.1
"""This soon after an answer the kernel's byte count is checked instead of a poll, which would release the
GIL."""
MAX_IDLE_PER_ORIGIN = 64


@dataclass(frozen=True, slots=True)
class Origin:
    """The target of a connection. ca_pem: the only trusted CA; None: the system's CAs."""

    scheme: str
    host: str
    port: int
    ca_pem: str | None = None

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        return host if self.port == default else f"{host}:{self.port}"


class BrokenAnswer(ServerLost):
    """The answer has more pieces, or more overhead, than any well-behaved server sends."""


class Connection:
    """A socket with one deadline for all reads and writes of an exchange."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._is_tls = isinstance(sock, ssl.SSLSocket)
        if not self._is_tls:
            network.use_system_timeouts(sock)
        self.reused = False
        self.deadline = 0.0
        self.ended = False
        """Whether the other side has closed its half."""
        self.dropped = False
        """Whether a reader took bytes from the socket that are not part of the answer."""
        self._unread = b""
        self._allowed: float = math.inf
        self._read_bytes = 0

    def begin(self, deadline: float) -> None:
        """Begin an exchange. deadline: by `time.monotonic`."""
        self.deadline = deadline
        self._allowed = math.inf

    def allow(self, count: float) -> None:
        """Limit the bytes that `read_into` returns from now on, approximately.

        http.client limits neither the number of 1xx answers nor the bytes after a body.
        """
        self._allowed = count

    def send(self, data: memoryview) -> int:
        """Send some of the data. Returns the number of bytes sent."""
        return self._in_time(network.limit_writes, lambda: self.sock.send(data))

    def quick_ack(self) -> None:
        """Acknowledge received data at once, until the next send.

        A server that writes head and body separately (Python's `http.server`) sends the body only after the
        head's acknowledgement, which the kernel otherwise delays by 40 ms.
        """
        if _TCP_QUICKACK is not None:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.IPPROTO_TCP, _TCP_QUICKACK, 1)

    def makefile(self, mode: str) -> io.BufferedReader:
        """The file for `http.client.HTTPResponse`, which closes it at the end of the answer."""
        return _Buffer(_Reader(self), 16 * 1024)

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes; empty at the end of the stream."""
        piece = self._in_time(network.limit_reads, lambda: self.sock.recv(size))
        self.ended = self.ended or not piece
        self._read_bytes += len(piece)
        return piece

    def push_back(self, piece: bytes) -> None:
        """Let `read_into` return these bytes first."""
        self._unread = piece

    def read_into(self, buffer: Any) -> int:
        """Read into a buffer. Returns the number of bytes. Raises BrokenAnswer beyond the limit of
        `allow`."""
        if self._allowed <= 0:
            raise BrokenAnswer("The answer has too many bytes besides its body.")
        count = self._read_into(buffer)
        self._allowed -= count
        return count

    def _read_into(self, buffer: Any) -> int:
        if self._unread:
            piece = self._unread[: len(buffer)]
            self._unread = self._unread[len(piece) :]
            buffer[: len(piece)] = piece
            return len(piece)
        count = self._in_time(network.limit_reads, lambda: self.sock.recv_into(buffer))
        self.ended = self.ended or count == 0
        self._read_bytes += count
        return count

    def is_open(self) -> bool:
        """Whether the connection is open without unread data, by the kernel's `tcp_info`.

        Unlike a poll this does not release the GIL. If the kernel does not count bytes, or TLS hides how many
        were read, the socket is polled.
        """
        if _TCP_INFO is None:
            return self.has_no_data()
        try:
            info = self.sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES_RECEIVED.stop)
        except OSError:
            return False
        if info[0] != _ESTABLISHED or self._unread:
            return False
        received = int.from_bytes(info[_BYTES_RECEIVED], sys.byteorder)
        return (not self._is_tls and received == self._read_bytes) or self.has_no_data()

    def has_no_data(self) -> bool:
        """Whether the socket has no data: an idle connection with data was closed, or sent an unrequested
        answer."""
        try:
            if self._unread or (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
                return False
            poller = select.poll()
            poller.register(self.sock, select.POLLIN)
            return not poller.poll(0)
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        """Close the socket. Never raises."""
        with contextlib.suppress(OSError):
            self.sock.close()

    def _in_time(self, limit: Callable[[socket.socket, float], None], call: Callable[[], T]) -> T:
        """One read or write, within the remaining time."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(_TOO_LATE)
        if self._is_tls:
            self.sock.settimeout(left)
        else:
            limit(self.sock, left)
        try:
            return call()
        except BlockingIOError as error:
            raise TimeoutError(_TOO_LATE) from error


class _Reader(io.RawIOBase):
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_over = False
        """Whether reads return the end of the stream from now on."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return 0 if self.is_over else self.connection.read_into(buffer)


class _Buffer(io.BufferedReader):
    """Marks the connection as dropped if unread bytes remain in the buffer when it is closed."""

    def close(self) -> None:
        reader = self.raw
        if not self.closed and isinstance(reader, _Reader):
            reader.is_over = True
            reader.connection.dropped |= bool(self.peek(1))
        super().close()


class SocketCloser:
    """Shuts a socket down from any thread, until `release`: later the socket may carry another run."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._lock = threading.Lock()
        self._ours = True

    def __call__(self) -> None:
        with self._lock:
            if self._ours:
                with contextlib.suppress(OSError):
                    # the base class's method, because a TLS socket's own would free state in use by the
                    # reader
                    socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def replace(self, sock: socket.socket) -> None:
        """Use another socket object of the same connection (TLS)."""
        with self._lock:
            self.sock = sock

    def release(self) -> None:
        """Do not shut the socket down any more."""
        with self._lock:
            self._ours = False


class Abort:
    """Ends a blocked network read from another thread, at once and permanently.

    `set_reader` registers a function that ends the current read; `fire` calls it. After `fire`, every
    registered function is called immediately.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fired = False
        self._end_read: Callable[[], None] | None = None

    @property
    def fired(self) -> bool:
        return self._fired

    def fire(self) -> None:
        """End the current read and all later ones. Safe to call twice."""
        with self._lock:
            self._fired = True
            end_read = self._end_read
        if end_read is not None:
            end_read()

    def set_reader(self, end_read: Callable[[], None] | None) -> None:
        """Register the function that ends the current read; None: there is no read."""
        with self._lock:
            self._end_read = end_read
            fired = self._fired
        if fired and end_read is not None:
            end_read()


def connect(origin: Origin, *, deadline: float, abort: Abort | None) -> Connection:
    """Open a connection; tries every address of the host.

    deadline: by `time.monotonic`; name resolution cannot be ended early. Raises ConnectRefused if every
    address refuses, ConnectTimedOut, ConnectFailed, Interrupted.
    """
    try:
        addresses = socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConnectFailed(f"{origin.host}: {error}") from error
    failure: Exception = OSError("the name has no address")
    was_refused = bool(addresses)
    for family, _, _, _, address in addresses:
        closer = SocketCloser(socket.socket(family, socket.SOCK_STREAM))
        if abort is not None:
            abort.set_reader(closer)
        try:
            return Connection(_open(closer, address, origin, deadline, abort))
        except (
            OSError,
            ValueError,
        ) as error:  # timeouts and TLS errors are OSErrors; a bad CA may be either
            failure = error
            was_refused = was_refused and isinstance(error, ConnectionRefusedError)
            closer.sock.close()
        finally:
            closer.release()
            if abort is not None:
                abort.set_reader(None)
        _check(abort)
    kind = ConnectTimedOut if isinstance(failure, TimeoutError) else ConnectFailed
    if was_refused:
        kind = ConnectRefused
    raise kind(f"{origin.host_header}: {reason(failure)}") from failure


def reason(error: Exception) -> str:
    """A short text for an error message."""
    return "timed out" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


def _open(
    closer: SocketCloser, address: Any, origin: Origin, deadline: float, abort: Abort | None
) -> socket.socket:
    sock = closer.sock
    _dial(sock, address, deadline, abort)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if origin.scheme != "https":
        return sock
    secured = _tls(origin.ca_pem).wrap_socket(
        sock, server_hostname=origin.host, do_handshake_on_connect=False
    )
    closer.replace(secured)
    if abort is not None and abort.fired:
        raise ConnectionAbortedError("interrupted")
    secured.settimeout(max(0.001, deadline - time.monotonic()))
    secured.do_handshake()
    return secured


def _dial(sock: socket.socket, address: Any, deadline: float, abort: Abort | None) -> None:
    """Connect in short slices, because a shutdown from another thread may not affect an unconnected
    socket."""
    sock.setblocking(False)
    error = sock.connect_ex(address)
    if error == errno.EINPROGRESS:
        poller = select.poll()
        poller.register(sock, select.POLLOUT)
        while not poller.poll(_SLICE_MS):
            if abort is not None and abort.fired:
                raise ConnectionAbortedError("interrupted")
            if time.monotonic() >= deadline:
                raise TimeoutError("timed out")
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, os.strerror(error))


def _check(abort: Abort | None) -> None:
    if abort is not None and abort.fired:
        raise Interrupted("Interrupted before the request was sent.")


@lru_cache(maxsize=256)
def _tls(ca_pem: str | None) -> ssl.SSLContext:
    if ca_pem is not None and not ca_pem.isascii():
        raise ValueError("the CA certificate is not in PEM format")
    context = ssl.create_default_context(cadata=ca_pem)
    context.set_alpn_protocols(["http/1.1"])
    return context


class Pool:
    """A pool of idle connections, last used first. Thread-safe; a forked child starts with an empty pool.

    max_idle_seconds: after so long, a connection is closed. fresh_seconds: so soon after its use, it is
    checked without a poll. max_idle: idle connections to one origin.
    """

    max_idle_seconds = MAX_IDLE_SECONDS
    fresh_seconds = FRESH_SECONDS
    max_idle = MAX_IDLE_PER_ORIGIN

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: dict[Origin, list[tuple[float, Connection]]] = {}
        self._swept_at = 0.0

    def take(self, origin: Origin) -> Connection | None:
        """An idle connection to the origin that seems usable, or None."""
        self._reset_after_fork()
        while True:
            with self._lock:
                waiting = self._idle.get(origin)
                if not waiting:
                    return None
                since, connection = waiting.pop()
            if self._is_usable(connection, time.monotonic() - since):
                connection.reused = True
                return connection
            connection.close()

    def keep(self, origin: Origin, connection: Connection) -> None:
        """Put a connection into the pool; closes old ones and surplus ones."""
        self._reset_after_fork()
        now = time.monotonic()
        with self._lock:
            waiting = self._idle.setdefault(origin, [])
            waiting.append((now, connection))
            surplus = [waiting.pop(0)[1]] if len(waiting) > self.max_idle else []
            if now - self._swept_at >= 1.0:
                self._swept_at = now
                surplus += self._sweep(now)
        for old in surplus:
            old.close()

    def clear(self) -> None:
        """Close all idle connections."""
        self._reset_after_fork()
        with self._lock:
            idle, self._idle = self._idle, {}
        for waiting in idle.values():
            for _, connection in waiting:
                connection.close()

    def _reset_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._reset()

    def _sweep(self, now: float) -> list[Connection]:
        old = []
        for origin, waiting in list(self._idle.items()):
            old += [connection for since, connection in waiting if now - since >= self.max_idle_seconds]
            self._idle[origin] = [pair for pair in waiting if now - pair[0] < self.max_idle_seconds]
            if not self._idle[origin]:
                del self._idle[origin]
        return old

    def _is_usable(self, connection: Connection, idle_seconds: float) -> bool:
        if idle_seconds >= self.max_idle_seconds:
            return False
        return connection.is_open() if idle_seconds < self.fresh_seconds else connection.has_no_data()
