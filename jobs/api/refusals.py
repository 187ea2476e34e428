"""Counts the 429 and 503 that this process answers, by code, and writes them down now and then."""

from __future__ import annotations

import threading
from collections import Counter
from time import monotonic

from foundation.http_api.problems import COME_AGAIN_STATUSES, Problem
from jobs.reports import counters

WRITE_SECONDS = 10.0
_lock = threading.Lock()
_counts: Counter[str] = Counter()
_written_at = 0.0


def count(problem: Problem) -> None:
    """One that is answered."""
    if problem.status in COME_AGAIN_STATUSES:
        with _lock:
            _counts[problem.code] += 1


def write(*, now: bool = False) -> None:
    """Every ten seconds at most, or now. Never raises."""
    global _written_at, _counts
    with _lock:
        if not _counts or (not now and monotonic() < _written_at + WRITE_SECONDS):
            return
        counts, _counts, _written_at = _counts, Counter(), monotonic()
    counters.add_by_code_if_possible(counters.Name.REQUESTS_REFUSED, counts)
