"""Writes SQLite's write-ahead log back into the database file, in place of the commit that fills the log.

By itself SQLite lets the next commit do it once the log has 4 MB, with an fsync: a submit of one row paid for
somebody's batch of 15 MB, 0.6 to 1 s. Here a sweep does it every second, while others go on writing. Without
that sweep a commit does it at 64 MB.
"""

from __future__ import annotations

from typing import Any

OWN_PAGES = 16_384
"""From so many on a commit writes the log back itself (`PRAGMA wal_autocheckpoint`)."""


def has_log(database: Any) -> bool:
    """database: a Django connection."""
    return bool(database.vendor == "sqlite") and not database.is_in_memory_db()


def write_back(database: Any) -> int:
    """Returns the pages that the log has. Those that a reader still needs are left for the next time."""
    with database.cursor() as cursor:
        cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
        _, pages, _ = cursor.fetchone()
    return max(0, int(pages))
