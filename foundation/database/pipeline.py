"""PostgreSQL's pipeline mode for a transaction: BEGIN, inserts and COMMIT take one round trip in place of one
each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections


@contextmanager
def one_round_trip() -> Iterator[None]:
    """Enclose a transaction. An error of a statement is raised by the next read, by the commit, or here.
    SQLite executes the statements one by one."""
    database: Any = connections[DEFAULT_DB_ALIAS]
    if database.vendor != "postgresql" or not database.Database.Pipeline.is_supported():
        yield
        return
    database.close_if_health_check_failed()
    database.ensure_connection()
    with database.wrap_database_errors, database.connection.pipeline():
        yield
