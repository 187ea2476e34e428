"""Reads the dispatcher's database directly."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from .contenders import Dispatcher


def query(ours: Dispatcher, statement: str) -> Sequence[Any]:
    """Return the first row of a statement's result."""
    if ours.database_url:
        import psycopg

        with psycopg.connect(ours.database_url, autocommit=True) as connection:
            return connection.execute(statement.encode()).fetchone() or ()
    with sqlite3.connect(f"file:{ours.folder / 'db.sqlite3'}?mode=ro", uri=True, timeout=20) as rows:
        found: Sequence[Any] = rows.execute(statement).fetchone() or ()
        return found


def count_jobs(ours: Dispatcher, state: str = "") -> int:
    where = f" where state = '{state}'" if state else ""
    return int(query(ours, f"select count(*) from jobs_job{where}")[0])
