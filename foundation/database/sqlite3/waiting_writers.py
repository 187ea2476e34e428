"""The writers of all processes that wait for SQLite's write lock: shared locks on a file beside the database.

A process that commits back to back finds the lock free each time; a writer that polls for it finds it taken
each time. So a connection that has just written lets waiting writers begin first, for a bounded time.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref

SUFFIX = "-waiting"
LATELY_SECONDS = 0.05
"""A connection that ended a transaction so long ago gives way."""
GIVE_WAY_SECONDS = 0.05
"""At most, so that a process that stands still while it waits stops nobody."""
_LOOK_SECONDS = 0.001


class WaitingWriters:
    """Of one connection. Not the database's own file: closing it would end SQLite's locks of the process."""

    def __init__(self, database: str) -> None:
        """Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(f"{database}{SUFFIX}", flags, 0o600)
        self.close = weakref.finalize(self, os.close, self._file)
        self._wrote_at = float("-inf")
        self._is_waiting = False

    def ended(self) -> None:
        """This connection has ended a transaction."""
        self._wrote_at = time.monotonic()

    def give_way(self) -> None:
        """Before a transaction: wait while other writers wait, if this connection wrote lately."""
        now = time.monotonic()
        if now - self._wrote_at > LATELY_SECONDS:
            return
        while not self._is_empty() and time.monotonic() - now < GIVE_WAY_SECONDS:
            time.sleep(_LOOK_SECONDS)

    def join(self) -> None:
        """May be repeated: another writer that looks at this moment keeps it from joining."""
        self._is_waiting = self._is_waiting or self._lock(fcntl.LOCK_SH)

    def leave(self) -> None:
        """No system call where it did not join: most transactions begin at once."""
        if self._is_waiting:
            self._is_waiting = False
            self._unlock()

    def _is_empty(self) -> bool:
        if not self._lock(fcntl.LOCK_EX):
            return False
        self._unlock()
        return True

    def _unlock(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def _lock(self, kind: int) -> bool:
        try:
            fcntl.flock(self._file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
