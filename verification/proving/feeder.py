"""Keeps the queue of waiting jobs as long as a fault needs, within the fault's allowance of jobs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from verification.proving.children import Child, NoReply

_EVERY_SECONDS = 0.2
_JOBS_WHILE_UNKNOWN = 1
"""Jobs released at a time while the number of waiting jobs is unknown."""
_BATCH_FROM = 30


class Feeder:
    """Releases jobs of the load as needed.

    level: number of jobs that shall wait. allowance: number of jobs that may still be released for that.
    trickles: release one a second in any case. limit: number of all jobs. waiting: returns the number of
    waiting jobs, None if unknown. at_end: called by its thread when that ends.
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

    def release(
        self,
        count: int,
        *,
        model: str = "",
        seconds: float = 0.0,
        with_files: bool = False,
        with_outputs: bool = False,
    ) -> dict[str, object]:
        """Release jobs at once, beyond the allowance; the seed decides their model and duration unless
        given. with_files: each takes a file, the first a big one. with_outputs: each takes a file, and the
        pinned worker saves one in parts."""
        kind: dict[str, object] = {"model": model, "seconds": seconds} if model else {}
        if with_files:
            kind["with_files"] = True
        if with_outputs:
            kind["with_outputs"] = True
        with self._lock:
            self.released += count
            self.allowance -= count
            return self._load.ask(do="release", count=count, batch=count >= _BATCH_FROM, **kind)

    def release_runs(self, count: int) -> None:
        """Release runs of workflows at once."""
        self._load.ask(do="release_runs", count=count)

    def waiting_now(self) -> int | None:
        """Return the number of waiting jobs; None if it is unknown."""
        return self._waiting()

    def counts(self) -> dict[str, int]:
        """Return the load's counts: released, accepted, given_up, uploads under way."""
        return self._load.ask(do="say")

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            with contextlib.suppress(NoReply):
                self.feed(time.monotonic())
        self._at_end()

    def feed(self, now: float) -> None:
        """Release jobs if needed. Raises NoReply."""
        missing = self._missing() if self.level > 0 and self.allowance > 0 else 0
        missing = min(missing, self.allowance, self.limit - self.released)
        if missing > 0:
            self.release(missing)
        elif self.trickles and now - self._trickled_at >= 1.0 and self.released < self.limit:
            self._trickled_at = now
            self.release(1)

    def _missing(self) -> int:
        counts = self.counts()
        on_their_way = counts["released"] - counts["accepted"] - counts["given_up"]
        waiting = self._waiting()
        if waiting is None:
            return _JOBS_WHILE_UNKNOWN if on_their_way < self.level else 0
        return self.level - waiting - on_their_way
