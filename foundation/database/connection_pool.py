"""A small connection pool for the many threads of a worker, each of which reads for a moment now and then.

With a connection of its own, a thread would keep it while it waits for a GPU, or pay 15 ms for a new one
after each wait. The pool keeps as many connections as are in use at once, up to a bound."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DEFAULT_DB_ALIAS, OperationalError, connections

from foundation.database.statements import use_connection

MOST = 4
WAIT_SECONDS = 5.0
"""Longest wait for a free connection: threads must not pile up before a database that hangs."""
CHECK_AFTER_SECONDS = 1.0
"""A connection that was idle for longer is checked before use: its server may have restarted."""


class ConnectionPool:
    """most: connections at once; further threads wait. Thread-safe."""

    def __init__(self, most: int = MOST) -> None:
        self._places = threading.BoundedSemaphore(most)
        self._idle: list[tuple[float, Any]] = []

    @contextmanager
    def connection(self) -> Iterator[None]:
        """Reads of `foundation.database.statements` in the block use a pooled connection, taken at the first
        read; everything else uses the thread's own. Do not wait for anything else in the block, and do not
        nest it. Reads raise OperationalError if no connection comes free."""
        lent: list[Any] = []

        def lend() -> Any:
            if not lent:
                lent.append(self._take())
            return lent[0]

        try:
            with use_connection(lend):
                yield
        finally:
            for database in lent:
                self._idle.append((time.monotonic(), database))  # last in, first out: spare ones grow stale
                self._places.release()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop()[1].close()

    def _take(self) -> Any:
        if not self._places.acquire(timeout=WAIT_SECONDS):
            raise OperationalError(f"no connection came free in {WAIT_SECONDS:.0f} s")
        try:
            return self._idle_or_new()
        except BaseException:
            self._places.release()
            raise

    def _idle_or_new(self) -> Any:
        try:
            since, lent = self._idle.pop()
        except IndexError:
            lent = connections.create_connection(DEFAULT_DB_ALIAS)
            lent.inc_thread_sharing()
            return lent
        if lent.errors_occurred or time.monotonic() - since > CHECK_AFTER_SECONDS:
            lent.close_if_unusable_or_obsolete()
        return lent
