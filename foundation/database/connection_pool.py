"""A few database connections for many threads, each of which needs one for a moment now and then.

A thread of its own connection keeps it while it waits for a GPU, or pays for a new one after each wait: 15 ms
of a PostgreSQL. Here a process has as many as are in use at once, up to a bound, and keeps them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DEFAULT_DB_ALIAS, OperationalError, connections

from foundation.database.statements import over

MOST = 4
WAIT_SECONDS = 5.0
"""For one that others have: before a database that hangs, threads must not queue up."""
LOOK_AFTER_SECONDS = 1.0
"""One that lay idle for so long is looked at before it is lent: the server may have gone meanwhile."""


class Lender:
    """most: connections at once; who comes then waits. Safe for threads."""

    def __init__(self, most: int = MOST) -> None:
        self._places = threading.BoundedSemaphore(most)
        self._idle: list[tuple[float, Any]] = []

    @contextmanager
    def connection(self) -> Iterator[None]:
        """What the block reads by `foundation.database.statements` it reads over a connection of these, all
        else over the thread's own; a block that reads nothing takes none. Not to be held while something else
        is awaited, nor taken twice. Reads raise OperationalError: none came free."""
        lent: list[Any] = []

        def lend() -> Any:
            if not lent:
                lent.append(self._take())
            return lent[0]

        try:
            with over(lend):
                yield
        finally:
            for database in lent:
                self._idle.append((time.monotonic(), database))  # the last used is the next: others grow old
                self._places.release()

    def close(self) -> None:
        """Those that are not lent."""
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
        if lent.errors_occurred or time.monotonic() - since > LOOK_AFTER_SECONDS:
            lent.close_if_unusable_or_obsolete()
        return lent
