"""Counts refused pushes for /metrics: in memory, and written at most once a second, so that a GPU server that
pushes in vain costs no write for each."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter

from jobs.reports import counters

WRITE_SECONDS = 1.0
# of the process, which writes them once a second
_lock = threading.Lock()
_counts: Counter[str] = Counter()
_written_at = -math.inf


def count_refused(code: str) -> None:
    """code: of the refusal."""
    global _written_at
    with _lock:
        _counts[code] += 1
        now = time.monotonic()
        if now - _written_at < WRITE_SECONDS:
            return
        _written_at = now
        due = dict(_counts)
        _counts.clear()
    counters.add_by_code_if_possible(counters.Name.PUSHES_REFUSED, due)


def forget() -> None:
    """For tests: as if none had been refused."""
    global _written_at
    with _lock:
        _counts.clear()
        _written_at = -math.inf
