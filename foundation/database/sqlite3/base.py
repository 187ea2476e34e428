"""Django's SQLite, with a shorter way to the database's one write lock. An engine: `settings.DATABASES`.

SQLite wakes no writer that waits: it looks again after pauses that grow to 100 ms. Where several processes
write all the time it finds the lock taken again each time, and a submit of one row waits for seconds. Here a
transaction that begins looks again every few milliseconds, as long as `timeout` says. And a connection that
has just written lets waiting writers of all processes begin first, for a bounded time: a process that commits
back to back finds the lock free each time, and a writer that looks for it finds it taken.
"""

from __future__ import annotations

import fcntl
import os
import random
import sqlite3
import time
import weakref
from contextlib import suppress
from typing import Any

from django.db import OperationalError
from django.db.backends.sqlite3 import base

PAUSE_SECONDS = (0.001, 0.004)
"""At random between these, so that writers that came together don't look together."""
SUFFIX = "-waiting"
LATELY_SECONDS = 0.05
"""A connection that ended a transaction so long ago gives way."""
GIVE_WAY_SECONDS = 0.05
"""At most, so that a process that stands still while it waits stops nobody."""
_LOOK_SECONDS = 0.001


class WaitingWriters:
    """The writers of all processes that wait for SQLite's write lock, as one connection sees them: shared
    locks on a file beside the database. On the database's own file, closing it would end SQLite's locks of
    the process."""

    def __init__(self, database: str) -> None:
        """Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(f"{database}{SUFFIX}", flags, 0o600)
        self.close = weakref.finalize(self, os.close, self._file)
        self._wrote_at = float("-inf")
        self._is_waiting = False

    def ended(self) -> None:
        """This connection has ended a transaction."""
        self._wrote_at = time.monotonic()

    def give_way(self) -> None:
        """Before a transaction: wait while other writers wait, if this connection wrote lately."""
        now = time.monotonic()
        if now - self._wrote_at > LATELY_SECONDS:
            return
        while not self._is_empty() and time.monotonic() - now < GIVE_WAY_SECONDS:
            time.sleep(_LOOK_SECONDS)

    def join(self) -> None:
        """May be repeated: another writer that looks at this moment keeps it from joining."""
        self._is_waiting = self._is_waiting or self._lock(fcntl.LOCK_SH)

    def leave(self) -> None:
        """No system call where it did not join: most transactions begin at once."""
        if self._is_waiting:
            self._is_waiting = False
            self._unlock()

    def _is_empty(self) -> bool:
        if not self._lock(fcntl.LOCK_EX):
            return False
        self._unlock()
        return True

    def _unlock(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def _lock(self, kind: int) -> bool:
        try:
            fcntl.flock(self._file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class DatabaseWrapper(base.DatabaseWrapper):
    _file: tuple[int, int] | None = None
    """Which file the connection has open: device and inode."""
    _waiting: WaitingWriters | None = None

    def get_new_connection(self, conn_params: Any) -> Any:
        self._waiting = None
        found = super().get_new_connection(conn_params)
        self._file = self._file_now()
        name = str(self.settings_dict["NAME"])
        if not self.is_in_memory_db() and not name.startswith("file:"):
            with suppress(OSError):  # the folder is read-only: there are no writers
                self._waiting = WaitingWriters(name)
        return found

    def _close(self) -> None:
        super()._close()  # type: ignore[misc]
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None

    def _commit(self) -> None:
        super()._commit()  # type: ignore[misc]
        if self._waiting is not None:
            self._waiting.ended()

    def is_usable(self) -> bool:
        """Not after an error of the database: its disk may have been full."""
        return not self.errors_occurred

    def close_if_unusable_or_obsolete(self) -> None:
        """Also where its file was moved, removed or replaced: what is written there is read by nobody."""
        if self.connection is not None and not self.in_atomic_block and self._file != self._file_now():
            self.close()
        super().close_if_unusable_or_obsolete()

    def _file_now(self) -> tuple[int, int] | None:
        """None: there is no such file, as with a database in memory."""
        try:
            found = os.stat(self.settings_dict["NAME"])
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _start_transaction_under_autocommit(self) -> None:
        """Raises OperationalError when the lock was taken for all of `timeout`."""
        patience = float(self.settings_dict["OPTIONS"].get("timeout", 5.0))
        until = time.monotonic() + patience
        waiting = self._waiting
        if waiting is not None:
            waiting.give_way()
        self._wait_in_sqlite(0.0)
        try:
            while True:
                try:
                    super()._start_transaction_under_autocommit()  # type: ignore[misc]
                    return
                except OperationalError as error:
                    if not _is_busy(error) or time.monotonic() >= until:
                        raise
                if waiting is not None:
                    waiting.join()
                time.sleep(random.uniform(*PAUSE_SECONDS))
        finally:
            if waiting is not None:
                waiting.leave()
            self._wait_in_sqlite(patience)

    def _wait_in_sqlite(self, seconds: float) -> None:
        """How long SQLite itself looks for a lock."""
        self.connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")


def _is_busy(error: OperationalError) -> bool:
    """A transaction whose connection reads an older state never gets the lock, however long it waits."""
    cause: Any = error.__cause__
    code = cause.sqlite_errorcode if isinstance(cause, sqlite3.Error) else 0
    return code & 0xFF == sqlite3.SQLITE_BUSY and code != sqlite3.SQLITE_BUSY_SNAPSHOT
