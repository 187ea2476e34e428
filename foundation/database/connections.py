"""Connections to the database: a small pool for the many threads of a worker, and shorter transactions.

A thread with a connection of its own would keep it while it waits for a GPU, or pay 15 ms for a new one after
each wait. The pool keeps as many connections as are in use at once, up to a limit.

Transactions take two round trips to PostgreSQL. With SQLite, one writer of this process writes at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DEFAULT_DB_ALIAS, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from foundation.database.statements import use_connection

MAX_CONNECTIONS = 4
WAIT_SECONDS = 5.0
"""Longest wait for a free connection: threads must not pile up if the database hangs."""
CHECK_AFTER_SECONDS = 1.0
"""A connection that was idle for longer is checked before use: its server may have restarted."""

SHORT_ROWS = 64
"""Most jobs of a short transaction."""


class ConnectionPool:
    """A pool of database connections. most: number of connections; further threads wait. wait_seconds: for so
    long. check_after_seconds: idle time after which a connection is checked. Thread-safe."""

    def __init__(
        self,
        most: int = MAX_CONNECTIONS,
        *,
        wait_seconds: float = WAIT_SECONDS,
        check_after_seconds: float = CHECK_AFTER_SECONDS,
    ) -> None:
        self._wait_seconds, self._check_after_seconds = wait_seconds, check_after_seconds
        self._places = threading.BoundedSemaphore(most)
        self._idle: list[tuple[float, Any]] = []

    @contextmanager
    def connection(self) -> Iterator[None]:
        """Let reads of `foundation.database.statements` in the block use a pooled connection, taken at the
        first read.

        Everything else uses the thread's own. Do not wait for anything else in the block, and do not nest it.
        Reads raise OperationalError if no connection comes free."""
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
        if not self._places.acquire(timeout=self._wait_seconds):
            raise OperationalError(f"no connection came free in {self._wait_seconds:.0f} s")
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
        if lent.errors_occurred or time.monotonic() - since > self._check_after_seconds:
            lent.close_if_unusable_or_obsolete()
        return lent


@contextmanager
def one_round_trip() -> Iterator[None]:
    """PostgreSQL's pipeline mode: the statements of the block take one round trip instead of one each.

    For the last statements of a transaction, with its COMMIT; `pipelined_transaction` is for a whole one. The
    error of a statement is raised by the next read, by the commit, or here. SQLite executes the statements
    one by one."""
    database: Any = connections[DEFAULT_DB_ALIAS]
    if database.vendor != "postgresql" or not database.Database.Pipeline.is_supported():
        yield
        return
    database.close_if_health_check_failed()
    database.ensure_connection()
    with database.wrap_database_errors, database.connection.pipeline():
        yield


@contextmanager
def pipelined_transaction() -> Iterator[None]:
    """A transaction in two round trips: BEGIN, and all statements with COMMIT, as in `one_round_trip`.

    Around a transaction, a pipeline has three more round trips: psycopg asks whether a transaction is open.
    Inside another transaction, the block is a part of it and does not commit."""
    database: Any = connections[DEFAULT_DB_ALIAS]
    with transaction.atomic(), one_round_trip():
        yield
        is_last = not database.savepoint_ids and not database.needs_rollback
        if is_last and database.vendor == "postgresql" and database.connection.pgconn.pipeline_status:
            database.connection.cursor().execute("COMMIT")  # Django's finds nothing left to commit


class WriteLock:
    """A lock for the writers of this process, for a database that allows one at a time: SQLite.

    It adds to the shorter pauses of `foundation.database.sqlite3`: writers of one process are woken when the
    current transaction ends, and short transactions go first. So a submit of one job waits for one batch at
    most.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._short = 0
        self.taken = False

    def take(self, *, short: bool, seconds: float) -> bool:
        """Acquire the lock within `seconds`; return False if that failed. short: of a short transaction."""
        with self._changed:
            self._short += short
            try:
                acquired = self._changed.wait_for(lambda: self._is_free(short=short), seconds)
            finally:
                self._short -= short
                self._changed.notify_all()
            self.taken |= acquired
            return acquired

    def release(self) -> None:
        """Release the lock and wake the waiting writers."""
        with self._changed:
            self.taken = False
            self._changed.notify_all()

    def _is_free(self, *, short: bool) -> bool:
        return not self.taken and (short or not self._short)


# of the process, like its database connections
_lock = WriteLock()


@contextmanager
def write_lock(rows: int) -> Iterator[None]:
    """Hold the lock during a transaction that writes this many jobs. No effect inside another transaction."""
    database = connections[DEFAULT_DB_ALIAS]
    acquired = _needs_lock(database) and _lock.take(
        short=rows <= SHORT_ROWS, seconds=_timeout_seconds(database)
    )
    try:
        yield
    finally:
        if acquired:
            _lock.release()


def _needs_lock(database: BaseDatabaseWrapper) -> bool:
    """Return False for a database in memory: it has no other writer.

    It is that of the simulation, whose processes are fibers of one thread: a lock would stop them all."""
    is_shared = database.settings_dict["NAME"] != ":memory:"
    return database.vendor == "sqlite" and is_shared and not database.in_atomic_block


def _timeout_seconds(database: BaseDatabaseWrapper) -> float:
    """Return SQLite's own time-out. After it the transaction is tried without the lock.

    While another process keeps the database locked, writers that each waited for all before them would get no
    answer in time."""
    return float(database.settings_dict["OPTIONS"]["timeout"])
