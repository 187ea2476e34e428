"""Persistent counters for /metrics. Each update is a write, so they are for rare or aggregated events."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

import structlog
from django.db import DatabaseError, InterfaceError, connection, transaction

from jobs.models import Tally

log = structlog.get_logger()


class Name(StrEnum):
    ATTEMPT_ENDS = "attempt_ends"
    """Ended attempts by model; code: outcome (``completed`` or an error code) / what followed, as
    ``busy/requeued``."""
    RESULTS_REFUSED = "results_refused"
    """Results of an attempt or epoch that is no longer current."""
    PUSHES_REFUSED = "pushes_refused"
    """Refused pushes of GPU servers; code: the error."""
    SIGN_INS_REFUSED = "sign_ins_refused"
    """Refused sign-ins; code: the exceeded limit."""
    SWEEP_REPAIRS = "sweep_repairs"
    """Repairs; code: name of the sweep."""
    REQUESTS_REFUSED = "requests_refused"
    """Requests answered with 429 or 503; code: of the problem."""
    RUN_ENDS = "run_ends"
    """Ended runs of workflows; model: the workflow, code: the state."""
    RUN_SECONDS = "run_seconds"
    """Ended runs by duration; model: the workflow, code: number of the bucket."""
    NODE_ENDS = "node_ends"
    """Ended nodes of runs; model: the kind, code: the outcome."""
    STEP_FAILURES = "step_failures"
    """Steps of runs that raised; code: the class of the error."""
    ADVANCES = "advances"
    """Steps of runs by duration; code: number of the bucket."""
    FIRINGS = "firings"
    """Due times of schedules; model: the outcome, code: the reason."""
    FIRING_LAGS = "firing_lags"
    """Started due times by lateness; code: number of the bucket."""
    WEB_ENDED = "web_ended"
    """Connections closed by the web server; code: reason."""


Key = tuple[Name, str, str]
"""(name, model, code)."""
_TABLE = Tally._meta.db_table
_ADD = (
    f"INSERT INTO {_TABLE} (name, model, code, count) VALUES (%s, %s, %s, %s) "
    f"ON CONFLICT (name, model, code) DO UPDATE SET count = {_TABLE}.count + excluded.count"
)


def add(counts: Mapping[Key, int]) -> None:
    """Add to the counters, as part of the caller's transaction if there is one. Sorted, so that two
    transactions can't deadlock."""
    rows = [(name.value, model, code, by) for (name, model, code), by in sorted(counts.items()) if by]
    if rows:
        with connection.cursor() as cursor:
            cursor.executemany(_ADD, rows)


def add_if_possible(name: Name, by: int) -> None:
    """Add to a counter, best effort: does not raise if the database is unavailable, and on PostgreSQL waits
    at most 200 ms for a lock."""
    add_by_code_if_possible(name, {"": by})


def add_by_code_if_possible(name: Name, counts: Mapping[str, int]) -> None:
    """Do `add_if_possible` for several codes."""
    if not any(counts.values()):
        return
    try:
        with transaction.atomic():
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute("SET LOCAL lock_timeout = '200ms'")
            add({(name, "", code): by for code, by in counts.items()})
    except (DatabaseError, InterfaceError) as error:
        log.warning("counter_increment_lost", tally=name.value, by=sum(counts.values()), error=str(error))


def read(name: Name) -> list[tuple[str, str, int]]:
    """Return (model, code, count) of all counters of this name."""
    return list(Tally.objects.filter(name=name.value).values_list("model", "code", "count"))


class BufferedCounts:
    """Counts by code in memory, written at most every `write_seconds`, so that frequent refusals don't cause
    a write each. One object per process and name."""

    def __init__(self, name: Name, *, write_seconds: float = 1.0) -> None:
        self.write_seconds = write_seconds
        self._name = name
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._written_at = -math.inf

    def count(self, code: str) -> None:
        """Add 1 and write if a write is due."""
        self.add(code)
        self.write()

    def add(self, code: str) -> None:
        """Add 1 without a write; the caller calls `write` periodically."""
        with self._lock:
            self._counts[code] += 1

    def write(self, *, now: bool = False) -> None:
        """Write the counts if `write_seconds` have passed since the last write. now: write at once. Does not
        raise if the database is unavailable."""
        with self._lock:
            at = time.monotonic()
            if not self._counts or (not now and at - self._written_at < self.write_seconds):
                return
            self._written_at = at
            due = dict(self._counts)
            self._counts.clear()
        add_by_code_if_possible(self._name, due)
