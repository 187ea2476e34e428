"""One writer of this process at a time, where the database has room for one: SQLite.

Beside the shorter pauses of `foundation.database.sqlite3`: writers of one process are woken when the
transaction before them ends, and short transactions go first. So a submit of one job waits for one batch at
most.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper

SHORT_ROWS = 64
"""Jobs of a short transaction, at most."""


class WriteLock:
    """One turn, given to one thread at a time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._short = 0
        self.taken = False

    def take(self, *, short: bool, seconds: float) -> bool:
        """Waits for a turn, at most so long. False: there was none."""
        with self._changed:
            self._short += short
            try:
                has_turn = self._changed.wait_for(lambda: self._is_free(short=short), seconds)
            finally:
                self._short -= short
                self._changed.notify_all()
            self.taken |= has_turn
            return has_turn

    def give_back(self) -> None:
        with self._changed:
            self.taken = False
            self._changed.notify_all()

    def _is_free(self, *, short: bool) -> bool:
        return not self.taken and (short or not self._short)


_turns = WriteLock()


@contextmanager
def write_lock(rows: int) -> Iterator[None]:
    """Around a transaction that writes so many jobs. Inside another one there is no turn to wait for."""
    database = connections[DEFAULT_DB_ALIAS]
    has_turn = _takes_turns(database) and _turns.take(
        short=rows <= SHORT_ROWS, seconds=_patience_seconds(database)
    )
    try:
        yield
    finally:
        if has_turn:
            _turns.give_back()


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
