"""Reads the database's clock, and the latest time written by a sweep, from any thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connection, connections

from foundation.database.statements import Read, use_connection
from jobs.models import SweepRun

_last_run = Read(lambda: SweepRun.objects.order_by("-at").values_list("at", flat=True)[:1])


def database_time() -> float | None:
    """Return the database's clock, in seconds since the epoch; None for SQLite, which has none."""
    if connection.vendor != "postgresql":
        return None
    with _own_connection() as own, own.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())")
        return float(cursor.fetchone()[0])


def last_database_time() -> float | None:
    """Return the latest time written by a sweep process, by its own clock, in seconds since the epoch; None
    if no sweep has run. A live sweep process writes every 5 s."""
    with _own_connection() as own, use_connection(lambda: own):
        return read_last_database_time()


def read_last_database_time() -> float | None:
    """Do `last_database_time` over the connection of this thread."""
    at = _last_run.first()
    return None if at is None else float(at.timestamp())


@contextmanager
def _own_connection() -> Iterator[Any]:
    """Open a connection for one query: the caller may be a short-lived thread, whose connection would
    leak."""
    own: Any = connections.create_connection(DEFAULT_DB_ALIAS)
    own.inc_thread_sharing()
    try:
        yield own
    finally:
        own.close()
