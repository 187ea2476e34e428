"""Advances the runs that wakes and sweeps name, in the order of a `FairQueue`, a few in each transaction.

A wake carries no work: the thread that gets one adds its runs to the queue, and advances whatever run comes
next while fewer than `threads` others do. So all wakes leave the broker at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock

import structlog
from django.db import InterfaceError, OperationalError

from workflows.execution.advancer import Advancer
from workflows.execution.fair_queue import FairQueue
from workflows.models import Run, follower_of

log = structlog.get_logger(__name__)

TOGETHER = 8
"""Most runs that one transaction advances."""
MOST_LEFT = 1_000
"""Runs that a stopping process names to others; a sweep finds the rest."""


class DueRuns:
    """The runs that are due in this process.

    threads: most threads that advance runs at once; the others take wakes. clock: monotonic seconds.
    """

    MAX_TENANTS_KNOWN = 20_000

    def __init__(
        self,
        advancer: Advancer,
        *,
        threads: int = 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue = FairQueue()
        self._advancer = advancer
        self._threads, self._clock = threads, clock
        self._lock = Lock()
        self._advancing = 0
        self._is_draining = False
        self._tenant_of: dict[str, int] = {}

    def wake(self, run_ids: Iterable[str]) -> None:
        """Add runs, and advance all that are due unless enough threads do. Raises OperationalError."""
        self.add(run_ids)
        self.advance()

    def busy(self) -> int:
        """Return how many threads advance runs."""
        return self._advancing

    def drain(self) -> None:
        """Begin no further transaction, and leave the due runs to other processes."""
        self._is_draining = True
        left = self.queue.clear()
        if left:
            self._advancer.ports.wake_followers([follower_of(run_id) for run_id in left[:MOST_LEFT]])

    def add(self, run_ids: Iterable[str]) -> None:
        """Add runs; those that do not exist are ignored."""
        wanted = list(dict.fromkeys(run_ids))
        unknown = [run_id for run_id in wanted if run_id not in self._tenant_of]
        if unknown:
            if len(self._tenant_of) + len(unknown) > self.MAX_TENANTS_KNOWN:
                self._tenant_of = {}
                unknown = wanted
            found = Run.objects.filter(id__in=unknown).values_list("id", "tenant_id")
            self._tenant_of.update(found)
        for run_id in wanted:
            if (tenant_id := self._tenant_of.get(run_id)) is not None:
                self.queue.add(run_id, tenant_id)

    def advance(self) -> None:
        """Advance runs until none is due.

        Where the database is away, the due runs are dropped: a sweep finds them. Raises OperationalError.
        """
        if not self._may_begin():
            return  # the threads that advance runs see the new ones: they look under the same lock
        try:
            while run_ids := self._next():
                self._advance(run_ids)
        except BaseException:
            with self._lock:
                self._advancing -= 1
            raise

    def _may_begin(self) -> bool:
        with self._lock:
            may = self._advancing < self._threads and not self._is_draining
            self._advancing += may
            return may

    def _next(self) -> list[str]:
        """Return the next runs; none, and count this thread out, if there are none."""
        with self._lock:
            run_ids = list[str]()
            while not self._is_draining and len(run_ids) < TOGETHER:
                run_id = self.queue.take()
                if run_id is None:
                    break
                run_ids.append(run_id)
            self._advancing -= not run_ids
            return run_ids

    def _advance(self, run_ids: Sequence[str]) -> None:
        began = self._clock()
        more: Mapping[str, bool] = {}
        try:
            more = self._advancer.advance_together(run_ids)
        except (OperationalError, InterfaceError):
            self.queue.clear()
            raise
        except Exception:
            log.exception("runs_not_advanced", run_ids=run_ids)
            more = self._advance_each(run_ids)
        finally:
            seconds = (self._clock() - began) / len(run_ids)
            for run_id in run_ids:
                self.queue.give_back(run_id, seconds, more=more.get(run_id, False))

    def _advance_each(self, run_ids: Sequence[str]) -> dict[str, bool]:
        """Advance runs one by one: a defect of one must not stop the others."""
        if len(run_ids) == 1:
            return {}
        more = {}
        for run_id in run_ids:
            try:
                more[run_id] = self._advancer.advance(run_id)
            except Exception:
                log.exception("run_not_advanced", run_id=run_id)
        return more
