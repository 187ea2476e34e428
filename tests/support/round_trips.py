"""The round trips of this thread's connection to PostgreSQL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

from django.db import connection


def round_trips(work: Callable[[], object]) -> int:
    """Return how often the server said that it is ready. The connection must be open."""
    pgconn = connection.connection.pgconn
    with tempfile.TemporaryFile() as file:
        pgconn.trace(file.fileno())
        work()
        pgconn.untrace()
        file.seek(0)
        return file.read().count(b"ReadyForQuery")
