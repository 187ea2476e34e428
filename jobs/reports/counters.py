"""Counters that outlive processes, for /metrics: of what is rare or was summed up, since each is a write."""

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
    """By model; code: how it ended (``completed`` or the error's) and what followed: ``busy/requeued``."""
    RESULTS_REFUSED = "results_refused"
    """Ends that came under an attempt or epoch which does not count any more."""
    PUSHES_REFUSED = "pushes_refused"
    """Pushes of GPU servers that were not read; code: why."""
    SIGN_INS_REFUSED = "sign_ins_refused"
    """code: which limit refused."""
    SWEEP_REPAIRS = "sweep_repairs"
    """code: the sweep."""
    REQUESTS_REFUSED = "requests_refused"
    """Requests that were told 429 or 503; code: of the answer."""
    WEB_ENDED = "web_ended"
    """Connections that the web server ended; code: why."""


Key = tuple[Name, str, str]
"""name, model, code."""
_TABLE = Tally._meta.db_table
_ADD = (
    f"INSERT INTO {_TABLE} (name, model, code, count) VALUES (%s, %s, %s, %s) "
    f"ON CONFLICT (name, model, code) DO UPDATE SET count = {_TABLE}.count + excluded.count"
)


def add(counts: Mapping[Key, int]) -> None:
    """Inside a transaction it counts if that commits. In one order, so that two never wait for each other."""
    rows = [(name.value, model, code, by) for (name, model, code), by in sorted(counts.items()) if by]
    if rows:
        with connection.cursor() as cursor:
            cursor.executemany(_ADD, rows)


def add_if_possible(name: Name, by: int) -> None:
    """For who has better things to do than to count: never raises over a database that is away, and does not
    wait for long where somebody else counts and does not come to an end."""
    add_by_code_if_possible(name, {"": by})


def add_by_code_if_possible(name: Name, counts: Mapping[str, int]) -> None:
    """As `add_if_possible`, of several codes."""
    if not any(counts.values()):
        return
    try:
        with transaction.atomic():
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute("SET LOCAL lock_timeout = '200ms'")
            add({(name, "", code): by for code, by in counts.items()})
    except (DatabaseError, InterfaceError) as error:
        log.warning("not_counted", tally=name.value, by=sum(counts.values()), error=str(error))


def read(name: Name) -> list[tuple[str, str, int]]:
    """(model, code, count)."""
    return list(Tally.objects.filter(name=name.value).values_list("model", "code", "count"))


class BufferedCounts:
    """Counts by code in memory, written once in `write_seconds` at most: what is refused again and again
    costs no write for each. One object per process and name."""

    def __init__(self, name: Name, *, write_seconds: float = 1.0) -> None:
        self.write_seconds = write_seconds
        self._name = name
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._written_at = -math.inf

    def count(self, code: str) -> None:
        self.add(code)
        self.write()

    def add(self, code: str) -> None:
        """Count without a write: the caller calls `write` now and then."""
        with self._lock:
            self._counts[code] += 1

    def write(self, *, now: bool = False) -> None:
        """Write what was counted, if `write_seconds` have passed since the last write, or now. Never raises
        over a database that is away."""
        with self._lock:
            at = time.monotonic()
            if not self._counts or (not now and at - self._written_at < self.write_seconds):
                return
            self._written_at = at
            due = dict(self._counts)
            self._counts.clear()
        add_by_code_if_possible(self._name, due)
