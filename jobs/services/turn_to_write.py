"""One writer of this process at a time, where the database has room for one: SQLite.

SQLite itself wakes nobody: who finds it locked looks again after pauses of up to 100 ms, and finds it locked
again while batches follow each other. Here the next one begins as soon as the last one ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper

_PATIENCE_SECONDS = 20.0
"""As long as SQLite itself would wait. Then the transaction is tried all the same: a process that keeps the
database locked is no reason to wait longer than without turns."""
_turn = threading.Lock()


@contextmanager
def turn_to_write() -> Iterator[None]:
    """Around a transaction that writes. Inside another one there is no turn to wait for."""
    if _takes_turns(connections[DEFAULT_DB_ALIAS]):
        with _in_turn():
            yield
    else:
        yield


def _takes_turns(database: BaseDatabaseWrapper) -> bool:
    """A database that one connection has in memory has no other writer. It is the simulator's, whose
    processes are fibers of one thread: a lock would stop them all."""
    is_shared = database.settings_dict["NAME"] != ":memory:"
    return database.vendor == "sqlite" and is_shared and not database.in_atomic_block


@contextmanager
def _in_turn() -> Iterator[None]:
    has_turn = _turn.acquire(timeout=_PATIENCE_SECONDS)
    try:
        yield
    finally:
        if has_turn:
            _turn.release()
