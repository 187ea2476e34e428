"""The node's open connections: at most so many, and the one that owes a request the longest goes first."""

from __future__ import annotations

import contextlib
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
