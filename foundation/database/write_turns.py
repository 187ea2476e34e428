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

_turn = threading.Lock()


@contextmanager
def turn_to_write() -> Iterator[None]:
    """Around a transaction that writes. Inside another one there is no turn to wait for."""
    if _takes_turns(connections[DEFAULT_DB_ALIAS]):
        with _in_turn(_patience_seconds(connections[DEFAULT_DB_ALIAS])):
            yield
    else:
        yield


def _takes_turns(database: BaseDatabaseWrapper) -> bool:
    """A database that one connection has in memory has no other writer. It is the simulator's, whose
    processes are fibers of one thread: a lock would stop them all."""
    is_shared = database.settings_dict["NAME"] != ":memory:"
    return database.vendor == "sqlite" and is_shared and not database.in_atomic_block


def _patience_seconds(database: BaseDatabaseWrapper) -> float:
    """As long as SQLite itself waits for its lock. Then the transaction is tried all the same: while another
    process keeps the database locked, writers that each waited for all before them would get no answer in
    time."""
    return float(database.settings_dict["OPTIONS"]["timeout"])


@contextmanager
def _in_turn(patience_seconds: float) -> Iterator[None]:
    has_turn = _turn.acquire(timeout=patience_seconds)
    try:
        yield
    finally:
        if has_turn:
            _turn.release()
