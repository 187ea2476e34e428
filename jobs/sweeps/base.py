"""What every sweep is: one symptom, looked for once, answered with a count.

Rules for all of them: a row is moved only by `jobs.transitions`, in a short transaction that is never held
over Redis or HTTP; two at once do no harm, because every move is a compare-and-set; one bad row
does not stop the others; without Redis the work on leases is skipped, and the note says so. How long ago each
last ran to its end is in the database, where the web process can read it.
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
"""The name of all sweeps that are due."""
Row = TypeVar("Row")
Moved = TypeVar("Moved")

MAX_NOTES = 20
BATCH = 50
"""Rows of one transaction: a commit each would keep the tick's other sweeps waiting."""


@dataclass(frozen=True, slots=True)
class SweepCount:
    """looked: how many rows were in question. repaired: changed by this run. failed: rows whose repair
    raised. notes: what an operator should know, a few words each."""

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
    """repair: True if it changed something. `LeasingUnavailable` ends the rest, others only their row."""
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
    """Moves at most `BATCH` rows in one transaction, or where that fails each in its own. rows: by the ids of
    their jobs, so that nobody who locks several waits for another in a circle. move: None if it changed
    nothing. moved: what it gave is added once it is committed."""

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
            return SweepCount(len(rows), failed=len(rows))  # one by one would take each its time-out
        return sweep_rows(name, rows, move_alone)
    moved += found
    return SweepCount(len(rows), len(found))


def clocks_disagree(ports: Ports) -> SweepCount | None:
    """For sweeps whose verdicts can't be taken back: a count that says why they stand still, or None. It asks
    Redis and the database, so call it only where there is a verdict to give."""
    report = ports.clocks.compared()
    return None if report.agree else SweepCount(notes=(f"stands still: {report}",))


def in_batches(rows: Sequence[Row]) -> Iterable[Sequence[Row]]:
    return (rows[first : first + BATCH] for first in range(0, len(rows), BATCH))


def sweep_groups(name: str, groups: Iterable[Row], step: Callable[[Row], SweepCount]) -> SweepCount:
    """The sum of steps that stand alone: the Redis of one fleet, or one server, may be gone while the others
    work."""
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
    return sweep_groups(name, ports.registry.fleets(), lambda fleet: step(fleet, ports.leases(fleet)))


def sweep_ages(now: datetime) -> dict[str, float]:
    """Seconds by name; `tick` is beat's own, any other may also have been run by hand. One that never ran is
    missing. Up to five seconds too old: the rows are written no more often."""
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
            statements.put_all(rows)
    counters.add({(counters.Name.SWEEP_REPAIRS, "", name): ran.count.repaired for name, ran in runs.items()})
