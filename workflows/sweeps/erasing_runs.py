"""Runs whose data is to be erased: that of their jobs goes in batches."""

from __future__ import annotations

from django.db.models import QuerySet

from foundation.database import statements
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.models import Run
from workflows.operations.erase import JOBS_AT_ONCE, erase_jobs

PERIOD_SECONDS = 5.0
MAX_RUNS = 10


def _erasing() -> QuerySet[Run]:
    return Run.objects.filter(erase_requested_at__isnull=False, erased_at=None)


_any_erasing = statements.AnyRow(_erasing)


def is_needed(_ports: Ports) -> bool:
    """Return True if the data of a run is to be erased."""
    return _any_erasing()


class ErasingRunsSweep:
    """Erases the data of runs in the order of their ids, and remembers the last run of each call: runs whose
    jobs can't be erased yet do not delay the others. max_runs: most runs of one call."""

    def __init__(self, max_runs: int = MAX_RUNS) -> None:
        self._max_runs = max_runs
        self._after = ""

    def __call__(self, ports: Ports, *, jobs_at_once: int = JOBS_AT_ONCE) -> SweepCount:
        """looked: runs. repaired: jobs whose data was erased."""
        erased, fault = 0, ""

        def erase(run: Run) -> bool:
            nonlocal erased, fault
            found = erase_jobs(run, ports, jobs_at_once)
            erased, fault = erased + found.done, found.fault or fault
            return True

        runs = list(_erasing().filter(id__gt=self._after).order_by("id")[: self._max_runs])
        self._after = runs[-1].id if len(runs) == self._max_runs else ""
        count = sweep_rows("erasing_runs", runs, erase)
        notes = (f"store: {fault}",) if fault else ()
        return SweepCount(count.looked, erased, count.failed, (*count.notes, *notes))
