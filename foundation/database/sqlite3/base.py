"""Django's SQLite, with a shorter way to the database's one write lock. An engine: `settings.DATABASES`.

SQLite wakes no writer that waits: it looks again after pauses that grow to 100 ms. Where several processes
write all the time it finds the lock taken again each time, and a submit of one row waits for seconds. Here a
transaction that begins looks again every few milliseconds, as long as `timeout` says.
"""

from __future__ import annotations

import random
import sqlite3
import time
from typing import Any

from django.db import OperationalError
from django.db.backends.sqlite3 import base

PAUSE_SECONDS = (0.001, 0.004)
"""At random between these, so that writers that came together don't look together."""


class DatabaseWrapper(base.DatabaseWrapper):
    def is_usable(self) -> bool:
        """Not after an error of the database: its file may have been replaced, or its disk full."""
        return not self.errors_occurred

    def _start_transaction_under_autocommit(self) -> None:
        """Raises OperationalError when the lock was taken for all of `timeout`."""
        patience = float(self.settings_dict["OPTIONS"].get("timeout", 5.0))
        until = time.monotonic() + patience
        self._wait_in_sqlite(0.0)
        try:
            while True:
                try:
                    super()._start_transaction_under_autocommit()  # type: ignore[misc]
                    return
                except OperationalError as error:
                    if not _is_busy(error) or time.monotonic() >= until:
                        raise
                time.sleep(random.uniform(*PAUSE_SECONDS))
        finally:
            self._wait_in_sqlite(patience)

    def _wait_in_sqlite(self, seconds: float) -> None:
        """How long SQLite itself looks for a lock."""
        self.connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")


def _is_busy(error: OperationalError) -> bool:
    cause: Any = error.__cause__
    return isinstance(cause, sqlite3.Error) and cause.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
