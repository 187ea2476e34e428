"""Django's SQLite backend with shorter waits for the database's write lock. An engine for
`settings.DATABASES`.

SQLite does not wake waiting writers: they poll after pauses that grow to 100 ms. If several processes write
all the time, a writer finds the lock taken again and again, and a submit of one row waits for seconds. Here a
beginning transaction, and a statement outside of one, poll every few milliseconds, up to `timeout`. And a
connection that has just written lets waiting writers of all processes go first, for a limited time: otherwise
a process that commits back to back always gets the lock.
"""

from __future__ import annotations

import fcntl
import os
import random
import sqlite3
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.db.backends.sqlite3 import base

PAUSE_SECONDS = (0.001, 0.004)
"""A random pause between these, so that writers that began together don't poll together."""
SUFFIX = "-waiting"
RECENT_SECONDS = 0.05
"""A connection lets others go first if its last transaction ended this recently."""
MAX_WAIT_SECONDS = 0.05
"""A limit, so that a waiting process that is suspended blocks no other."""
_POLL_SECONDS = 0.001


class WaitingWriters:
    """The writers of all processes that wait for SQLite's write lock, seen from one connection: shared locks
    on a file beside the database.

    On the database's own file, closing it would release SQLite's locks of the process."""

    def __init__(self, database: str) -> None:
        """Open the lock file. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(f"{database}{SUFFIX}", flags, 0o600)
        self.close = weakref.finalize(self, os.close, self._file)
        self._wrote_at = float("-inf")
        self._is_waiting = False

    def ended(self) -> None:
        """Record that this connection has ended a transaction."""
        self._wrote_at = time.monotonic()

    def let_others_write(self) -> None:
        """Before a transaction: wait while other writers wait, if this connection wrote recently."""
        now = time.monotonic()
        if now - self._wrote_at > RECENT_SECONDS:
            return
        while not self._is_empty() and time.monotonic() - now < MAX_WAIT_SECONDS:
            time.sleep(_POLL_SECONDS)

    def join(self) -> None:
        """Become a waiting writer. May fail while another writer checks the file; call it again then."""
        self._is_waiting = self._is_waiting or self._lock(fcntl.LOCK_SH)

    def leave(self) -> None:
        """Stop waiting. No system call if it did not join: most transactions begin at once."""
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
    """Device and inode of the file that the connection has open."""
    _waiting: WaitingWriters | None = None

    def get_new_connection(self, conn_params: Any) -> Any:
        self._waiting = None
        found = super().get_new_connection(conn_params)
        found.execute("PRAGMA busy_timeout = 0")  # `_Polling` waits
        self._file = self._file_now()
        name = str(self.settings_dict["NAME"])
        if not self.is_in_memory_db() and not name.startswith("file:"):
            with suppress(OSError):  # the folder is read-only, so there are no writers
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
        """Return False after an error of the database: its disk may have been full."""
        return not self.errors_occurred

    def close_if_unusable_or_obsolete(self) -> None:
        """Close also if the file was moved, removed or replaced: writes to it would be lost."""
        if self.connection is not None and not self.in_atomic_block and self._file != self._file_now():
            self.close()
        super().close_if_unusable_or_obsolete()

    def _file_now(self) -> tuple[int, int] | None:
        """Return device and inode of the database's file; None if there is none, as with a database in
        memory."""
        try:
            found = os.stat(self.settings_dict["NAME"])
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def create_cursor(self, name: str | None = None) -> Any:
        return self.connection.cursor(factory=lambda owner: _DjangoCursor(owner, self._poll))

    def driver_cursor(self) -> sqlite3.Cursor:
        """Return a cursor that takes SQL of the driver, with ``?`` for values."""
        connection: sqlite3.Connection = self.connection
        return connection.cursor(factory=lambda owner: _Polling(owner, self._poll))

    def _start_transaction_under_autocommit(self) -> None:
        """Begin a transaction, polling for the lock. Raises OperationalError if it was taken for all of
        `timeout`."""
        if self._waiting is not None:
            self._waiting.let_others_write()
        super()._start_transaction_under_autocommit()  # type: ignore[misc]

    def _poll(self, act: Callable[[], Any]) -> Any:
        """Repeat what did not get the lock, for up to `timeout`; return its result."""
        until = time.monotonic() + float(self.settings_dict["OPTIONS"].get("timeout", 5.0))
        waiting = self._waiting
        try:
            while True:
                if waiting is not None:
                    waiting.join()
                time.sleep(random.uniform(*PAUSE_SECONDS))
                try:
                    return act()
                except sqlite3.OperationalError as error:
                    if not _is_busy(error) or time.monotonic() >= until:
                        raise
        finally:
            if waiting is not None:
                waiting.leave()


class _Polling(sqlite3.Cursor):
    """A cursor whose statements outside of transactions poll for the write lock, too. SQLite's own wait keeps
    the connection's mutex: a thread that has the lock, and in which Python collects an old cursor of that
    connection, then waits for the mutex, and both stop for all of `timeout`."""

    def __init__(self, connection: sqlite3.Connection, poll: Callable[[Callable[[], Any]], Any]) -> None:
        super().__init__(connection)
        self._poll = poll

    def execute(self, *given: Any) -> Any:
        try:
            return super().execute(*given)
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or self.connection.in_transaction:
                raise
        return self._poll(lambda: super(_Polling, self).execute(*given))

    def executemany(self, *given: Any) -> Any:
        if self.connection.in_transaction:
            return super().executemany(*given)
        self.execute("BEGIN IMMEDIATE")  # a repeated call must not write its first rows again
        with self.connection:
            return super().executemany(*given)


class _DjangoCursor(_Polling, base.SQLiteCursorWrapper):  # type: ignore[misc]
    """A cursor of Django, with ``%s`` for values."""


def _is_busy(error: sqlite3.Error) -> bool:
    """Return False also for a transaction that reads an older snapshot: it never gets the lock."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_BUSY and code != sqlite3.SQLITE_BUSY_SNAPSHOT
