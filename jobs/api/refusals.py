"""Counts the 429 and 503 that this process answers, by code, and writes them down now and then."""

from __future__ import annotations

from foundation.http_api.problems import COME_AGAIN_STATUSES, Problem
from jobs.reports.counters import BufferedCounts, Name

WRITE_SECONDS = 10.0

# of the process: every answer counts here, whoever wrote it
_refused = BufferedCounts(Name.REQUESTS_REFUSED, write_seconds=WRITE_SECONDS)


def count(problem: Problem) -> None:
    """Count a problem that is answered."""
    if problem.status in COME_AGAIN_STATUSES:
        _refused.add(problem.code)


def write(*, now: bool = False) -> None:
    """Every ten seconds at most, or now. Never raises."""
    _refused.write(now=now)
