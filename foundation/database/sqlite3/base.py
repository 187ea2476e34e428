"""Django's SQLite, with a shorter way to the database's one write lock. An engine: `settings.DATABASES`.

SQLite wakes no writer that waits: it looks again after pauses that grow to 100 ms. Where several processes
write all the time it finds the lock taken again each time, and a submit of one row waits for seconds. Here a
transaction that begins looks again every few milliseconds, as long as `timeout` says, and a connection that
has just written lets waiting writers begin first (`waiting_writers`).
"""

from __future__ import annotations

import os
import random
import sqlite3
import time
from contextlib import suppress
from typing import Any

from django.db import OperationalError
from django.db.backends.sqlite3 import base

from foundation.database.sqlite3.waiting_writers import WaitingWriters

PAUSE_SECONDS = (0.001, 0.004)
"""At random between these, so that writers that came together don't look together."""


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
