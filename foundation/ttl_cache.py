"""Caches of one process whose entries expire: a change by another process is seen after that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

from django.db import transaction
from django.db.models import Model
from django.db.models.signals import post_delete, post_save
from django.dispatch import Signal

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


class RowChanges:
    """The changes that this process makes to rows of these models. One per process and group of models: the
    configuration of the Django app that has them owns it, since receivers of signals are of the process.

    also: further signals that mean a change. latest: another object after each change.
    """

    def __init__(self, of: Iterable[type[Model]] = (), also: Iterable[Signal] = ()) -> None:
        self.latest = object()
        for model in of:  # signals hold their receivers weakly
            post_save.connect(self.rows_changed, sender=model)
            post_delete.connect(self.rows_changed, sender=model)
        for signal in also:
            signal.connect(self.rows_changed)

    def rows_changed(self, **_: object) -> None:
        """A change now for this transaction, and after its commit for all others."""
        self._change()
        if transaction.get_connection().in_atomic_block:
            transaction.on_commit(self._change)

    def _change(self) -> None:
        self.latest = object()


class TtlCache(Generic[Key, Found]):
    """A cache with a TTL. Thread-safe. seconds: the TTL; a function is called at each insertion. max_entries:
    with more, the cache is cleared. changes: after one of them, the cache is cleared; None: of nothing."""

    def __init__(
        self, seconds: float | Callable[[], float], *, max_entries: int, changes: RowChanges | None = None
    ) -> None:
        self._changes = changes or RowChanges()
        self._seen = self._changes.latest
        self._seconds = seconds if callable(seconds) else lambda: seconds
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._found: dict[Key, tuple[float, Found]] = {}

    @overload
    def get(self, key: Key, read: Callable[[], Found]) -> Found: ...
    @overload
    def get(self, key: Key, read: Callable[[], Found | None]) -> Found | None: ...
    def get(self, key: Key, read: Callable[[], Found | None]) -> Found | None:
        """Return the cached value, or read it.

        None is not cached, since unknown keys are endless, nor is a value whose read began before a `clear`.
        """
        if self._seen is not self._changes.latest:
            self._catch_up()
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
        if self._seen is not self._changes.latest:
            self._catch_up()
        known = self._found.get(key)
        return known[1] if known is not None and known[0] > time.monotonic() else None

    def clear(self) -> None:
        with self._lock:
            self._found = {}

    def _catch_up(self) -> None:
        latest = self._changes.latest
        self.clear()
        self._seen = latest  # not before: another thread would find what was read before the change


class AdaptiveTtlValue(Generic[Found]):
    """One cached value whose TTL is `TIMES` as long as its read took, which bounds the share of time spent
    reading.

    monotonic: returns seconds."""

    TIMES = 10.0
    CHEAP_SECONDS = 0.1
    """A value that took less time to read is not cached."""
    MAX_SECONDS = 30.0

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
            kept = min(self.TIMES * took, self.MAX_SECONDS) if took > self.CHEAP_SECONDS else 0.0
            self._kept = (ended + kept, found)
            return found


@dataclass(slots=True)
class _Count:
    left: int
    until: float


class RemainingCapacity:
    """The remaining capacity of limits that need not be exact: counted every few seconds, and reduced by what
    this process admits meanwhile.

    Other processes admit more between two counts, by which a limit may be exceeded. keep_seconds: shortest
    time between two counts."""

    SHARE_OF_TIME = 0.01
    """Largest share of a process' time for the counts of one limit."""
    MAX_LIMITS = 20_000

    def __init__(self, keep_seconds: float = 2.0) -> None:
        self._keep_seconds = keep_seconds
        self._lock = threading.Lock()
        self._counts: dict[str, _Count] = {}

    def take(self, name: str, amount: int, count: Callable[[], int]) -> int:
        """Return the remaining capacity of a limit, and reserve `amount` of it.

        count: reads the remaining capacity. An unused reservation counts until the next reading."""
        known = self._counts.get(name)
        if known is None or known.until <= time.monotonic():
            began = time.monotonic()
            left = count()
            ended = time.monotonic()
            known = _Count(left, ended + max(self._keep_seconds, (ended - began) / self.SHARE_OF_TIME))
            with self._lock:
                if len(self._counts) >= self.MAX_LIMITS:
                    self._counts.clear()
                self._counts[name] = known
        with self._lock:
            left = known.left
            known.left -= min(amount, max(left, 0))
        return left

    def clear(self) -> None:
        with self._lock:
            self._counts.clear()
