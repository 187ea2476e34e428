"""The sweep contract and shared helpers: a sweep looks for one symptom once and returns a `SweepCount`.

Rules: rows are moved only by `jobs.transitions`, in short transactions without Redis or HTTP calls inside.
Every move is a compare-and-set, so concurrent sweeps are harmless. One bad row does not stop the others.
Without Redis, work on leases is skipped with a note. The last completed run of each sweep is in the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import structlog
from django.db import OperationalError, transaction

from foundation.database import statements
from gpus.errors import LeasingUnavailable
from gpus.leasing.contract import Leases
from jobs.execution.group_commit import is_caused_by_write
from jobs.models import SweepRun
from jobs.ports import Ports
from jobs.reports import counters
from jobs.reports.rollups import CURSOR

log = structlog.get_logger(__name__)

TICK = "tick"
"""Name that stands for all sweeps that are due; also the name of beat's own row."""
ABSENCES = "unknown_objects.absences"
"""Name of the `SweepRun` row of `jobs.sweeps.absences`; it is no sweep."""
Row = TypeVar("Row")
Moved = TypeVar("Moved")

MAX_NOTES = 20
BATCH = 50
"""Rows per transaction; one commit per row would delay the other sweeps of the tick."""


@dataclass(frozen=True, slots=True)
class SweepCount:
    """Result of one run. looked: rows examined. repaired: rows changed by this run. failed: rows whose repair
    raised. notes: short messages for operators, at most `MAX_NOTES`."""

    looked: int = 0
    repaired: int = 0
    failed: int = 0
    notes: tuple[str, ...] = ()

    def __add__(self, other: SweepCount) -> SweepCount:
        return SweepCount(
            self.looked + other.looked,
            self.repaired + other.repaired,
            self.failed + other.failed,
            (self.notes + other.notes)[:MAX_NOTES],
        )


Sweep = Callable[[Ports], SweepCount]


def sweep_rows(name: str, rows: Iterable[Row], repair: Callable[[Row], bool]) -> SweepCount:
    """Repair rows one by one and count the results.

    repair: returns True if it changed the row. `LeasingUnavailable` ends the loop with a note; any other
    exception is logged and counts as a failed row.
    """
    looked = repaired = failed = 0
    for row in rows:
        looked += 1
        try:
            repaired += bool(repair(row))
        except LeasingUnavailable as error:
            return SweepCount(looked, repaired, failed, (f"leases: {error}",))
        except Exception:
            failed += 1
            log.exception("sweep_row_failed", sweep=name, row=str(row)[:200])
    return SweepCount(looked, repaired, failed)


def move_rows(
    name: str, rows: Sequence[Row], move: Callable[[Row], Moved | None], moved: list[Moved]
) -> SweepCount:
    """Move rows in one transaction, a batch of `in_batches`; if that fails, each row in its own.

    rows: sorted by job id, a lock order that prevents deadlocks. move: called inside the transaction; None
    without a change. moved: receives the results of `move` after the commit.
    """

    def move_alone(row: Row) -> bool:
        with transaction.atomic():
            one = move(row)
        if one is not None:
            moved.append(one)
        return one is not None

    try:
        with transaction.atomic():
            found = [one for row in rows if (one := move(row)) is not None]
    except Exception as error:
        log.exception("sweep_row_failed", sweep=name, row=str(rows)[:200])
        if isinstance(error, OperationalError) and not is_caused_by_write(error):
            return SweepCount(len(rows), failed=len(rows))  # each row alone would time out, too
        return sweep_rows(name, rows, move_alone)
    moved += found
    return SweepCount(len(rows), len(found))


def clocks_disagree(ports: Ports) -> SweepCount | None:
    """Return a count whose note says why an irreversible sweep is paused; None if the clocks agree.

    Reads the clocks of Redis and the database: call it only when there are rows to change.
    """
    report = ports.clock_watch.fresh_report()
    return None if report.agree else SweepCount(notes=(f"paused: {report}",))


def in_batches(rows: Sequence[Row], size: int = BATCH) -> Iterable[Sequence[Row]]:
    return (rows[first : first + size] for first in range(0, len(rows), size))


def sweep_groups(name: str, groups: Iterable[Row], step: Callable[[Row], SweepCount]) -> SweepCount:
    """Sum the counts of independent steps: a failure in one group (a fleet, a server) does not stop the
    others."""
    total = SweepCount()
    for group in groups:
        try:
            total += step(group)
        except LeasingUnavailable as error:
            total += SweepCount(notes=(f"{group}: {error}",))
        except Exception:
            total += SweepCount(failed=1)
            log.exception("sweep_row_failed", sweep=name, row=str(group)[:200])
    return total


def sweep_fleets(name: str, ports: Ports, step: Callable[[str, Leases], SweepCount]) -> SweepCount:
    """Run `step` with each fleet's name and lease layer, and sum the counts as `sweep_groups` does."""
    return sweep_groups(name, ports.registry.fleets(), lambda fleet: step(fleet, ports.leases(fleet)))


def sweep_ages(now: datetime) -> dict[str, float]:
    """Return the seconds since each sweep last completed, by name; `tick` is the last tick of beat.

    Sweeps that never ran are missing. Values can be 5 s too high, because rows are written every 5 s.
    """
    return {
        name: max(0.0, (now - at).total_seconds())
        for name, at in SweepRun.objects.exclude(name__in=(CURSOR, ABSENCES)).values_list("name", "at")
    }


@dataclass(frozen=True, slots=True)
class UnwrittenRuns:
    """The runs of one sweep that its `SweepRun` row does not include yet. at: when the last run ended. count:
    the sum of all of them."""

    at: datetime
    count: SweepCount


def write_runs(runs: Mapping[str, UnwrittenRuns]) -> None:
    """Upsert the `SweepRun` rows in one statement and add the repairs to the counters."""
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
            statements.upsert_all(rows)
    counters.add({(counters.Name.SWEEP_REPAIRS, "", name): ran.count.repaired for name, ran in runs.items()})
