"""Keeps the line of waiting jobs as long as the moment needs, out of the jobs that a fault may use up."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from verification.proving.children import Child, Silent

_EVERY_SECONDS = 0.2
_BLIND_JOBS = 1
"""How many are released at a time while nobody can say how many wait."""
_BATCH_FROM = 30


class Feeder:
    """level: how many jobs shall wait. allowance: how many may still be released for that. trickles: whether
    one a second comes in anyhow. limit: how many there are in all.

    waiting: how many do now, None if that can't be seen. at_end: called by its thread when that ends.
    """

    def __init__(
        self,
        load: Child,
        waiting: Callable[[], int | None],
        limit: int,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.limit = limit
        self._load, self._waiting, self._at_end = load, waiting, at_end
        self.level = 0
        self.allowance = 0
        self.trickles = False
        self.released = 0
        self._trickled_at = float("-inf")
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(10)

    def release(self, count: int, *, model: str = "", seconds: float = 0.0) -> dict[str, object]:
        """At once, whatever is allowed; what they are is the seed's choice unless it is said."""
        kind = {"model": model, "seconds": seconds} if model else {}
        with self._lock:
            self.released += count
            self.allowance -= count
            return self._load.ask(do="release", count=count, batch=count >= _BATCH_FROM, **kind)

    def waiting_now(self) -> int | None:
        return self._waiting()

    def standing(self) -> dict[str, int]:
        return self._load.ask(do="say")

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            with contextlib.suppress(Silent):
                self.feed(time.monotonic())
        self._at_end()

    def feed(self, now: float) -> None:
        """Once. Raises Silent."""
        missing = self._missing() if self.level > 0 and self.allowance > 0 else 0
        missing = min(missing, self.allowance, self.limit - self.released)
        if missing > 0:
            self.release(missing)
        elif self.trickles and now - self._trickled_at >= 1.0 and self.released < self.limit:
            self._trickled_at = now
            self.release(1)

    def _missing(self) -> int:
        standing = self.standing()
        on_their_way = standing["released"] - standing["accepted"] - standing["given_up"]
        waiting = self._waiting()
        if waiting is None:
            return _BLIND_JOBS if on_their_way < self.level else 0
        return self.level - waiting - on_their_way
