"""One writer of this process at a time, where the database has room for one: SQLite.

SQLite itself wakes nobody: who finds it locked looks again after pauses of up to 100 ms, and finds it locked
again while batches follow each other. Here the next one begins as soon as the last one ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DEFAULT_DB_ALIAS, connections

_PATIENCE_SECONDS = 20.0
"""As long as SQLite itself would wait. Then the transaction is tried all the same: a process that keeps the
database locked is no reason to wait longer than without turns."""
_turn = threading.Lock()


@contextmanager
def turn_to_write() -> Iterator[None]:
    """Around a transaction that writes. Inside another one there is none to wait for."""
    database = connections[DEFAULT_DB_ALIAS]
    if database.vendor != "sqlite" or database.in_atomic_block:
        yield
        return
    has_turn = _turn.acquire(timeout=_PATIENCE_SECONDS)
    try:
        yield
    finally:
        if has_turn:
            _turn.release()
