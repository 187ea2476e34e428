"""Counts of runs, nodes and steps for /metrics: kept in memory, written about once a second."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable

from django.db import DatabaseError, InterfaceError, connection, transaction

from jobs.reports import counters
from jobs.reports.counters import Key, Name
from jobs.reports.rollups import BOUNDS_SECONDS
from workflows.domain.states import NodeState
from workflows.models import Node

STEP_BOUNDS_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.06, 0.1, 0.2, 0.5, 1.0, 5.0)
CACHED = "cached"
"""Outcome of a node that took an earlier result."""


class RunCounts:
    """The counts of one process. after: calls a function later (`Ports.after`). What a crash leaves unwritten
    is lost."""

    def __init__(self, after: Callable[[float, Callable[[], None]], None], *, write_seconds: float = 1.0):
        self._after, self._write_seconds = after, write_seconds
        self._lock = threading.Lock()
        self._counts: Counter[Key] = Counter()
        self._is_armed = False

    def count_step(self, seconds: float, nodes: Iterable[Node]) -> None:
        """Count a transaction of the advancer, and the nodes that ended in it."""
        ended = Counter((Name.NODE_ENDS, node.kind, _outcome(node)) for node in nodes if node.finished_at)
        self._add({**ended, (Name.ADVANCES, "", bucket(seconds, STEP_BOUNDS_SECONDS)): 1})

    def count_run(self, workflow: str, state: str, seconds: float) -> None:
        """Count a run that has ended."""
        self._add({
            (Name.RUN_ENDS, workflow, state): 1,
            (Name.RUN_SECONDS, workflow, bucket(seconds, BOUNDS_SECONDS)): 1,
        })  # fmt: skip

    def write(self) -> None:
        """Write the counts. They are kept if the database is away."""
        with self._lock:
            due, self._counts, self._is_armed = dict(self._counts), Counter(), False
        try:
            with transaction.atomic():
                counters.add(due)
        except (DatabaseError, InterfaceError):
            self._add(due)

    def _add(self, counts: dict[Key, int]) -> None:
        with self._lock:
            self._counts.update(counts)
            arm, self._is_armed = not self._is_armed, True
        if arm:
            self._after(self._write_seconds, self._write_and_close)

    def _write_and_close(self) -> None:
        try:
            self.write()
        finally:
            if isinstance(threading.current_thread(), threading.Timer):
                connection.close()  # of that thread, which ends


def bucket(seconds: float, bounds: tuple[float, ...]) -> str:
    """Return the number of a bucket of a histogram, as text."""
    return str(bisect_left(bounds, seconds))


def _outcome(node: Node) -> str:
    return CACHED if node.cached_from and node.state == NodeState.COMPLETED else node.state
