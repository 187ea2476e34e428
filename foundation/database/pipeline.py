"""Statements whose answers nobody reads, sent to PostgreSQL in one go: BEGIN, inserts and COMMIT take one
journey in place of one each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections


@contextmanager
def one_trip() -> Iterator[None]:
    """Around a transaction. An error of a statement is raised where an answer is next waited for: by a read,
    by the commit, or here. SQLite is no journey away: it is told one by one."""
    database: Any = connections[DEFAULT_DB_ALIAS]
    if database.vendor != "postgresql" or not database.Database.Pipeline.is_supported():
        yield
        return
    database.close_if_health_check_failed()
    database.ensure_connection()
    with database.wrap_database_errors, database.connection.pipeline():
        yield
