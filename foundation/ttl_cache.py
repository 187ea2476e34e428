"""What was read a moment ago, kept in this process: a change elsewhere is seen when it is forgotten."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar, overload

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


class Remembered(Generic[Key, Found]):
    """seconds: how long, asked each time. at_most: entries; beyond them all are forgotten."""

    def __init__(self, seconds: Callable[[], float], *, at_most: int) -> None:
        self._seconds, self._at_most = seconds, at_most
        self._lock = threading.Lock()
        self._found: dict[Key, tuple[float, Found]] = {}

    @overload
    def get(self, key: Key, read: Callable[[], Found]) -> Found: ...
    @overload
    def get(self, key: Key, read: Callable[[], Found | None]) -> Found | None: ...
    def get(self, key: Key, read: Callable[[], Found | None]) -> Found | None:
        """What `read` says now or said lately. None is not remembered: names of what is not are endless."""
        now = time.monotonic()
        known = self._found.get(key)
        if known is not None and known[0] > now:
            return known[1]
        found = read()
        if found is None:
            return None
        with self._lock:
            if len(self._found) >= self._at_most:
                self._found.clear()
            self._found[key] = (now + self._seconds(), found)
        return found

    def knows(self, key: Key) -> bool:
        """Whether `get` would not have to read."""
        known = self._found.get(key)
        return known is not None and known[0] > time.monotonic()

    def peek(self, key: Key) -> Found | None:
        """What was read, if it is still remembered."""
        known = self._found.get(key)
        return known[1] if known is not None and known[0] > time.monotonic() else None

    def forget(self) -> None:
        with self._lock:
            self._found.clear()


class Rationed(Generic[Found]):
    """One answer for all who ask: one that was costly to read is kept for `TIMES` as long as that took, so
    that no more than that share of the time goes into reading. monotonic: in seconds."""

    TIMES = 10.0
    CHEAP_SECONDS = 0.1
    """What took less is read anew each time."""
    MOST_SECONDS = 30.0

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: tuple[float, Found] | None = None

    def get(self, read: Callable[[], Found]) -> Found:
        """What `read` says now, or said lately. Who asks during a reading waits for it."""
        with self._lock:
            began = self._monotonic()
            if self._kept is not None and began < self._kept[0]:
                return self._kept[1]
            found = read()
            ended = self._monotonic()
            took = ended - began
            kept = min(self.TIMES * took, self.MOST_SECONDS) if took > self.CHEAP_SECONDS else 0.0
            self._kept = (ended + kept, found)
            return found

    def forget(self) -> None:
        with self._lock:
            self._kept = None
