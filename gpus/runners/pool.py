"""Keeps connections to GPU servers for the next request."""

from __future__ import annotations

import os
import threading
import time

from gpus.runners.connections import Connection, Origin

MAX_IDLE_SECONDS = 4.0
"""Servers close idle connections after 5 s (uvicorn, Node.js) or later: by then ours are gone, so that a
request rarely meets a connection that is being closed."""
FRESH_SECONDS = 0.1
"""So soon after an answer the system's own count says enough: no poll gives the interpreter away."""
MAX_IDLE_PER_ORIGIN = 64


class Pool:
    """Idle connections, the last used first. Safe for threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Leaves the connections to whoever holds them as well: a forked child must not use its parent's."""
        self._lock = threading.Lock()
        self._idle: dict[Origin, list[tuple[float, Connection]]] = {}
        self._swept_at = 0.0

    def take(self, origin: Origin) -> Connection | None:
        """One that is open and quiet as far as can be seen from here."""
        while True:
            with self._lock:
                waiting = self._idle.get(origin)
                if not waiting:
                    return None
                since, connection = waiting.pop()
            if _is_good(connection, time.monotonic() - since):
                connection.reused = True
                return connection
            connection.close()

    def keep(self, origin: Origin, connection: Connection) -> None:
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
        with self._lock:
            idle, self._idle = self._idle, {}
        for waiting in idle.values():
            for _, connection in waiting:
                connection.close()

    def _sweep(self, now: float) -> list[Connection]:
        old = []
        for origin, waiting in list(self._idle.items()):
            old += [connection for since, connection in waiting if now - since >= MAX_IDLE_SECONDS]
            self._idle[origin] = [pair for pair in waiting if now - pair[0] < MAX_IDLE_SECONDS]
            if not self._idle[origin]:
                del self._idle[origin]
        return old


def _is_good(connection: Connection, idle_seconds: float) -> bool:
    if idle_seconds >= MAX_IDLE_SECONDS:
        return False
    return connection.is_open() if idle_seconds < FRESH_SECONDS else connection.is_quiet()


SHARED_POOL = Pool()
os.register_at_fork(after_in_child=SHARED_POOL.forget)
