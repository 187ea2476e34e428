"""What stands in the dispatcher's database, read past it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from .contenders import Dispatcher


def ask(ours: Dispatcher, statement: str) -> Sequence[Any]:
    """The first row of the answer."""
    if ours.database_url:
        import psycopg

        with psycopg.connect(ours.database_url, autocommit=True) as connection:
            return connection.execute(statement.encode()).fetchone() or ()
    with sqlite3.connect(f"file:{ours.folder / 'db.sqlite3'}?mode=ro", uri=True, timeout=20) as rows:
        found: Sequence[Any] = rows.execute(statement).fetchone() or ()
        return found


def count_jobs(ours: Dispatcher, state: str = "") -> int:
    where = f" where state = '{state}'" if state else ""
    return int(ask(ours, f"select count(*) from jobs_job{where}")[0])
