"""What the database says of the time, asked from any thread: its own clock, and what processes wrote last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connection, connections

from foundation.database.statements import Read, use_connection
from jobs.models import SweepRun

_last_run = Read(lambda: SweepRun.objects.order_by("-at").values_list("at", flat=True)[:1])


def database_time() -> float | None:
    """The database's clock, seconds since the epoch; None: SQLite has none."""
    if connection.vendor != "postgresql":
        return None
    with _own_connection() as own, own.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())")
        return float(cursor.fetchone()[0])


def last_database_time() -> float | None:
    """The latest time that a sweep wrote, seconds since the epoch: by the clock that its process goes by. A
    living sweeper writes every five seconds. None: none ever ran."""
    with _own_connection() as own, use_connection(lambda: own):
        return read_last_database_time()


def read_last_database_time() -> float | None:
    """The same over the connection of this thread."""
    at = _last_run.first()
    return None if at is None else float(at.timestamp())


@contextmanager
def _own_connection() -> Iterator[Any]:
    """Whoever asks may be a thread that lives a moment."""
    own: Any = connections.create_connection(DEFAULT_DB_ALIAS)
    own.inc_thread_sharing()
    try:
        yield own
    finally:
        own.close()
