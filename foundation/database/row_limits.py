"""Limits on numbers of rows, exact under concurrent transactions.

On PostgreSQL, concurrent transactions don't see each other's rows: near a limit they take its advisory lock,
and count again. SQLite has one writer."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from django.db import connection
from django.db.models import QuerySet

MARGIN = 5_000
"""Free places from which a transaction takes no lock: rows that transactions insert which have not committed,
at most; the sweep of schedules inserts up to 2,500."""


def free_places(name: str, rows: QuerySet[Any], most: int) -> int:
    """Return how many rows the transaction may insert, before its commit; 0 or less: none.

    name: of the limit and whose it is. rows: those that count. most: the limit.
    """
    free = most - _count(rows, most)
    if free < MARGIN and connection.vendor == "postgresql":
        lock_limits([name])
        free = most - _count(rows, most)
    return free


def _count(rows: QuerySet[Any], most: int) -> int:
    return rows.order_by().values("pk")[:most].count()


def lock_limits(names: Iterable[str]) -> None:
    """Lock limits until the transaction ends, all in one statement and in one order, so that two transactions
    can't deadlock. Only on PostgreSQL, in a transaction."""
    keys = sorted(map(lock_key, names))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(one) FROM unnest(%s::bigint[]) AS one", [keys])


def lock_key(name: str) -> int:
    """Return the key of a limit's advisory lock."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)
