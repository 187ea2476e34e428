"""Limits of an HTTP server with a thread per connection: how long a request may take to come, how large its
head may be, and how many connections are open. For GPU nodes and the health port of workers."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from dataclasses import dataclass

HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """How long a request may take to come, in seconds.

    head: its head. idle: the next request of an answered connection; the dispatcher closes an idle one after
    4 s. body: its body. body_idle: each part of the body.
    """

    head: float = 10.0
    idle: float = 75.0
    body: float = 120.0
    body_idle: float = 10.0


DEFAULT_TIMES = RequestTimes()


class Connections:
    """The open connections. most: limit; each has a thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._threads: dict[socket.socket, threading.Thread] = {}
        self._idle: dict[socket.socket, None] = {}
        """Those that wait for a request's head, the oldest first."""

    def admit(self, connection: socket.socket, thread: threading.Thread) -> bool:
        """Add a connection, closing the oldest idle one if needed. False: all are busy, and the caller must
        close it."""
        with self._lock:
            if len(self._threads) >= self._most and not self._end_oldest():
                return False
            self._threads[connection] = thread
            self._idle[connection] = None
            return True

    def wait(self, connection: socket.socket) -> None:
        """Mark a connection as idle: it waits for its next request."""
        with self._lock:
            if connection in self._threads:
                self._idle[connection] = None

    def begin(self, connection: socket.socket) -> None:
        """Mark a connection as busy: its request's head has arrived."""
        with self._lock:
            self._idle.pop(connection, None)

    def forget(self, connection: socket.socket) -> None:
        """Remove a connection that was closed."""
        with self._lock:
            self._threads.pop(connection, None)
            self._idle.pop(connection, None)

    def end_oldest(self) -> None:
        """Close the oldest idle connection, if there is one."""
        with self._lock:
            self._end_oldest()

    def cut(self) -> None:
        """End every connection, also in the middle of a reply."""
        with self._lock:
            connections = list(self._threads)
        for connection in connections:
            _shut(connection)

    def join(self, timeout_seconds: float) -> None:
        """Wait for the threads of connections that were cut."""
        until = time.monotonic() + timeout_seconds
        with self._lock:
            threads = list(self._threads.values())
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def _end_oldest(self) -> bool:
        """Shut down and remove the oldest idle connection; its thread then exits."""
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


class TimedReader(io.RawIOBase):
    """Reads a connection within time and size limits. Raises TimeoutError, HeadTooLarge."""

    def __init__(self, connection: socket.socket, times: RequestTimes = DEFAULT_TIMES) -> None:
        self._connection, self._times = connection, times
        self._idle = False
        self._until = time.monotonic() + times.head
        self._left: int | None = HEAD_BYTES
        """Bytes of the head that may still come. None: the body is being read."""

    def readable(self) -> bool:
        return True

    def await_next_head(self) -> None:
        """Set the limits for the next request's head."""
        self._idle, self._until, self._left = True, time.monotonic() + self._times.idle, HEAD_BYTES

    def await_body(self) -> None:
        """Set the limits for a request's body."""
        self._idle, self._until, self._left = False, time.monotonic() + self._times.body, None

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read within the limits that are set."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left if self._left is not None else min(left, self._times.body_idle))
        if self._left is not None:
            if not self._left:
                raise HeadTooLarge
            buffer = buffer[: self._left]
        count = self._connection.recv_into(buffer)
        if self._left is not None:
            self._left -= count
        if self._idle and count:
            self._idle, self._until = False, time.monotonic() + self._times.head
        return count
