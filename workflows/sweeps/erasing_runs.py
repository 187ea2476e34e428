"""Runs whose data is to be erased: that of their jobs goes in batches."""

from __future__ import annotations

from django.db.models import QuerySet

from foundation.database import statements
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.erasing import JOBS_AT_ONCE, erase_jobs
from workflows.models import Run

PERIOD_SECONDS = 5.0
MAX_RUNS = 10


def _erasing() -> QuerySet[Run]:
    return Run.objects.filter(erase_requested_at__isnull=False, erased_at=None)


_any_erasing = statements.AnyRow(_erasing)


def is_needed(_ports: Ports) -> bool:
    """Return True if the data of a run is to be erased."""
    return _any_erasing()


def sweep(ports: Ports, *, jobs_at_once: int = JOBS_AT_ONCE) -> SweepCount:
    """looked: runs. repaired: jobs whose data was erased."""
    erased = 0

    def erase(run: Run) -> bool:
        nonlocal erased
        erased += erase_jobs(run, ports, jobs_at_once)
        return True

    count = sweep_rows("erasing_runs", _erasing().order_by("erase_requested_at")[:MAX_RUNS], erase)
    return SweepCount(count.looked, erased, count.failed, count.notes)
