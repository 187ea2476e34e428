"""Connections to GPU servers: opening one, holding it to a deadline, ending it from another thread, and
keeping it for the next request."""

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
"""The first byte of Linux' `tcp_info`, as long as neither side has closed its half."""
_BYTES_RECEIVED = slice(128, 136)
"""Of `tcp_info`: how many bytes came in all, read or not. Empty or zero where the system does not count."""
MAX_IDLE_SECONDS = 4.0
"""Servers close idle connections after 5 s (uvicorn, Node.js) or later: by then ours are gone, so that a
request rarely meets a connection that is being closed."""
FRESH_SECONDS = 0.1
"""So soon after an answer the system's own count says enough: no poll gives the interpreter away."""
MAX_IDLE_PER_ORIGIN = 64


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a connection leads, and whom it trusts. ca_pem: that CA alone, instead of the system's."""

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
    """The answer is in more pieces, or has more around it, than any good server's."""


class Connection:
    """A socket whose every operation ends at one deadline, however many pieces it comes in."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._is_tls = isinstance(sock, ssl.SSLSocket)
        if not self._is_tls:
            network.block(sock)
        self.reused = False
        self.deadline = 0.0
        self.ended = False
        """Whether the other side has closed its half."""
        self.dropped = False
        """Whether an answer's reader took more than the answer from the socket."""
        self._unread = b""
        self._allowed: float = math.inf
        self._read_bytes = 0

    def begin(self, deadline: float) -> None:
        """deadline: by `time.monotonic`."""
        self.deadline = deadline
        self._allowed = math.inf

    def allow(self, count: float) -> None:
        """The most bytes that `read_into` gives from now on, roughly. http.client bounds neither how many 1xx
        answers come before one nor what stands behind its body."""
        self._allowed = count

    def send(self, data: memoryview) -> int:
        return self._in_time(network.limit_writes, lambda: self.sock.send(data))

    def quick_ack(self) -> None:
        """A server that writes head and body apart (Python's `http.server`) sends the body only once its head
        is acknowledged, which the system else puts off for 40 ms. Sending takes this back."""
        if _TCP_QUICKACK is not None:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.IPPROTO_TCP, _TCP_QUICKACK, 1)

    def makefile(self, mode: str) -> io.BufferedReader:
        """What `http.client.HTTPResponse` reads from, and closes at the answer's end."""
        return _Buffer(_Reader(self), 16 * 1024)

    def read(self, size: int) -> bytes:
        """What is there, at most `size`; nothing: it has ended."""
        piece = self._in_time(network.limit_reads, lambda: self.sock.recv(size))
        self.ended = self.ended or not piece
        self._read_bytes += len(piece)
        return piece

    def push_back(self, piece: bytes) -> None:
        """It is read again by `read_into`, before anything else."""
        self._unread = piece

    def read_into(self, buffer: Any) -> int:
        """Raises BrokenAnswer past what is allowed."""
        if self._allowed <= 0:
            raise BrokenAnswer("The answer has too much around its body.")
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
        """As the system knows it, and nothing came that was not read: what it counts costs no turn at the
        interpreter, as a poll does. Where it does not count, or TLS hides how much was read, it is polled."""
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
        """Nothing to read: an idle connection that is readable was closed, or says what nobody asked."""
        try:
            if self._unread or (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
                return False
            poller = select.poll()
            poller.register(self.sock, select.POLLIN)
            return not poller.poll(0)
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.close()

    def _in_time(self, limit: Callable[[socket.socket, float], None], call: Callable[[], T]) -> T:
        """One read or write, in what is left."""
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
        """Nothing more is read from the socket."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return 0 if self.is_over else self.connection.read_into(buffer)


class _Buffer(io.BufferedReader):
    """Notes at its end whether it holds what was not read of it."""

    def close(self) -> None:
        reader = self.raw
        if not self.closed and isinstance(reader, _Reader):
            reader.is_over = True
            reader.connection.dropped |= bool(self.peek(1))
        super().close()


class SocketCloser:
    """Ends what blocks on a socket, from any thread, and only while it is ours: once let go, the socket may
    carry somebody else's run."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._lock = threading.Lock()
        self._ours = True

    def __call__(self) -> None:
        with self._lock:
            if self._ours:
                with contextlib.suppress(OSError):
                    # of the base class: a TLS socket's own would free its state under the reader
                    socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def replace(self, sock: socket.socket) -> None:
        """The same connection, in another wrapping."""
        with self._lock:
            self.sock = sock

    def release(self) -> None:
        with self._lock:
            self._ours = False


class Abort:
    """Ends a blocked network read from another thread, at once and for good.

    Register a way to end the current read with `set_reader`; `fire` calls it and every later registration
    is called immediately.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fired = False
        self._end_read: Callable[[], None] | None = None

    @property
    def fired(self) -> bool:
        return self._fired

    def fire(self) -> None:
        with self._lock:
            self._fired = True
            end_read = self._end_read
        if end_read is not None:
            end_read()

    def set_reader(self, end_read: Callable[[], None] | None) -> None:
        with self._lock:
            self._end_read = end_read
            fired = self._fired
        if fired and end_read is not None:
            end_read()


def connect(origin: Origin, *, deadline: float, abort: Abort | None) -> Connection:
    """A new connection, tried at every address of the host. Raises ConnectFailed, Interrupted; ConnectRefused
    if every address refuses, ConnectTimedOut.

    deadline: by `time.monotonic`. Looking up the name is the system's own: nothing here ends it early.
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
        ) as error:  # time-outs and TLS errors are OSErrors, a bad CA may be either
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
    """For people."""
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
    """In slices: a socket that is not connected yet can't be shut down from another thread for sure."""
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
        raise Interrupted("Interrupted before anything was sent.")


@lru_cache(maxsize=256)
def _tls(ca_pem: str | None) -> ssl.SSLContext:
    if ca_pem is not None and not ca_pem.isascii():
        raise ValueError("the CA certificate is not PEM")
    context = ssl.create_default_context(cadata=ca_pem)
    context.set_alpn_protocols(["http/1.1"])
    return context


class Pool:
    """Idle connections, the last used first. Safe for threads; a forked child leaves its parent's alone."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: dict[Origin, list[tuple[float, Connection]]] = {}
        self._swept_at = 0.0

    def take(self, origin: Origin) -> Connection | None:
        """One that is open and quiet as far as can be seen from here."""
        self._reset_after_fork()
        while True:
            with self._lock:
                waiting = self._idle.get(origin)
                if not waiting:
                    return None
                since, connection = waiting.pop()
            if _is_usable(connection, time.monotonic() - since):
                connection.reused = True
                return connection
            connection.close()

    def keep(self, origin: Origin, connection: Connection) -> None:
        self._reset_after_fork()
        now = time.monotonic()
        with self._lock:
            waiting = self._idle.setdefault(origin, [])
            waiting.append((now, connection))
            surplus = [waiting.pop(0)[1]] if len(waiting) > MAX_IDLE_PER_ORIGIN else []
            if now - self._swept_at >= 1.0:
                self._swept_at = now
                surplus += self._sweep(now)
        for old in surplus:
            old.close()

    def clear(self) -> None:
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
            old += [connection for since, connection in waiting if now - since >= MAX_IDLE_SECONDS]
            self._idle[origin] = [pair for pair in waiting if now - pair[0] < MAX_IDLE_SECONDS]
            if not self._idle[origin]:
                del self._idle[origin]
        return old


def _is_usable(connection: Connection, idle_seconds: float) -> bool:
    if idle_seconds >= MAX_IDLE_SECONDS:
        return False
    return connection.is_open() if idle_seconds < FRESH_SECONDS else connection.has_no_data()
