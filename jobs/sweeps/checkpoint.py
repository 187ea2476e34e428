"""Pages of SQLite's write-ahead log that are not in the database file yet
(`foundation.database.sqlite3.checkpoint`)."""

from __future__ import annotations

from django.db import connection

from foundation.database.sqlite3.checkpoint import has_log, write_back
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount


def is_needed(ports: Ports) -> bool:
    return has_log(connection)


def sweep(ports: Ports) -> SweepCount:
    """looked: pages written back from the log."""
    return SweepCount(write_back(connection) if has_log(connection) else 0)
