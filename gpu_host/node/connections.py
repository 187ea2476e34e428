"""The node's open connections: how many there may be, and how long a request's head or body may take."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time


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


IDLE_SECONDS = 75.0
"""An answered connection waits so long for a next request. The dispatcher gives an idle one up after 4 s."""
HEAD_SECONDS = 10.0
HEAD_BYTES = 64 * 1024
BODY_IDLE_SECONDS = 10.0
BODY_SECONDS = 120.0


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
