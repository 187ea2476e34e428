"""Caches of one process whose entries expire: a change by another process is seen once they have."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

from django.db import transaction
from django.db.models import Model
from django.db.models.signals import post_delete, post_save

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


class TtlCache(Generic[Key, Found]):
    """seconds: the TTL; a function is called at each insertion. max_entries: beyond them it is cleared."""

    def __init__(self, seconds: float | Callable[[], float], *, max_entries: int) -> None:
        self._seconds = seconds if callable(seconds) else lambda: seconds
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._found: dict[Key, tuple[float, Found]] = {}

    @overload
    def get(self, key: Key, read: Callable[[], Found]) -> Found: ...
    @overload
    def get(self, key: Key, read: Callable[[], Found | None]) -> Found | None: ...
    def get(self, key: Key, read: Callable[[], Found | None]) -> Found | None:
        """Return the cached value, or read it. Neither None is cached, as unknown keys are endless, nor what
        was read before a `clear`."""
        now, found_before = time.monotonic(), self._found
        known = found_before.get(key)
        if known is not None and known[0] > now:
            return known[1]
        found = read()
        if found is None:
            return None
        with self._lock:
            if self._found is found_before:
                if len(found_before) >= self._max_entries:
                    found_before.clear()
                found_before[key] = (now + self._seconds(), found)
        return found

    def peek(self, key: Key) -> Found | None:
        """Return the cached value, or None."""
        known = self._found.get(key)
        return known[1] if known is not None and known[0] > time.monotonic() else None

    def clear(self) -> None:
        with self._lock:
            self._found = {}


class RowCache(TtlCache[Key, Found]):
    """Values read from rows of these models: a change by this process is seen at once. What changes rows
    without their `save` or `delete` calls `rows_changed`."""

    def __init__(
        self, seconds: float | Callable[[], float], *, max_entries: int, of: Iterable[type[Model]]
    ) -> None:
        super().__init__(seconds, max_entries=max_entries)
        for model in of:  # signals hold their receivers weakly
            post_save.connect(self.rows_changed, sender=model)
            post_delete.connect(self.rows_changed, sender=model)

    def rows_changed(self, **_: object) -> None:
        """Clear before the commit for the transaction that changed a row, and after it for all others."""
        self.clear()
        if transaction.get_connection().in_atomic_block:
            transaction.on_commit(self.clear)


class AdaptiveTtlValue(Generic[Found]):
    """One cached value whose TTL is `TIMES` as long as its read took, so that reading takes no more than that
    share of the time. monotonic: in seconds."""

    TIMES = 10.0
    CHEAP_SECONDS = 0.1
    """A value whose read took less is not cached."""
    MOST_SECONDS = 30.0

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: tuple[float, Found] | None = None

    def get(self, read: Callable[[], Found]) -> Found:
        """Return the cached value, or read it; concurrent callers wait for one read."""
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


@dataclass(slots=True)
class _Count:
    left: int
    until: float


class FreePlaces:
    """How many places are left under limits that need not be exact: counted every few seconds, and reduced by
    what this process lets in meanwhile. Other processes let in more between two counts: a limit may be
    exceeded by what they take then. keep_seconds: between two counts at least."""

    SHARE_OF_TIME = 0.01
    """The most of a process' time that goes into the counts of one limit."""
    MOST_LIMITS = 20_000

    def __init__(self, keep_seconds: float = 2.0) -> None:
        self._keep_seconds = keep_seconds
        self._lock = threading.Lock()
        self._counts: dict[str, _Count] = {}

    def take(self, name: str, asking: int, count: Callable[[], int]) -> int:
        """Return how many places are left under the limit, and reserve `asking` of them.

        count: reads the places that are left. A reservation that is not used counts until the next reading.
        """
        known = self._counts.get(name)
        if known is None or known.until <= time.monotonic():
            began = time.monotonic()
            left = count()
            ended = time.monotonic()
            known = _Count(left, ended + max(self._keep_seconds, (ended - began) / self.SHARE_OF_TIME))
            with self._lock:
                if len(self._counts) >= self.MOST_LIMITS:
                    self._counts.clear()
                self._counts[name] = known
        with self._lock:
            left = known.left
            known.left -= min(asking, max(left, 0))
        return left

    def clear(self) -> None:
        with self._lock:
            self._counts.clear()
