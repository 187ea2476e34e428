"""How long ago each sweep last ran to its end, where the web process can read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import transaction

from foundation.database import bulk_rows
from jobs.models import SweepRun
from jobs.reports import counters
from jobs.reports.ended_events import CURSOR
from jobs.sweeps.base import SweepCount


def sweep_ages(now: datetime | None = None) -> dict[str, float]:
    """Seconds by name; `tick` is beat's own, any other may also have been run by hand. One that never ran is
    missing. Up to five seconds too old: the rows are written no more often."""
    now = now or datetime.now(UTC)
    return {
        name: max(0.0, (now - at).total_seconds())
        for name, at in SweepRun.objects.exclude(name=CURSOR).values_list("name", "at")
    }


@dataclass(frozen=True, slots=True)
class Ran:
    """The runs of a sweep since its row was written before. at: when the last of them ended."""

    at: datetime
    count: SweepCount


def write_runs(runs: Mapping[str, Ran]) -> None:
    """One statement for all, and one for each that repaired something."""
    rows = [
        SweepRun(
            name=name,
            at=ran.at,
            looked=ran.count.looked,
            repaired=ran.count.repaired,
            note="; ".join(ran.count.notes)[:500],
        )
        for name, ran in runs.items()
    ]
    if rows:
        with transaction.atomic(savepoint=False):
            bulk_rows.put_all(rows)
    counters.add({(counters.Name.SWEEP_REPAIRS, "", name): ran.count.repaired for name, ran in runs.items()})
