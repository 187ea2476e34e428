"""The record of runs of workflows: the clients' ledger against the database. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verification.proving.judge import Finding
from verification.proving.records import JobRow

OVER = ("completed", "failed", "cancelled")
_EXPLAINED = ("poison",)
"""Errors of jobs that faults explain."""


@dataclass(slots=True)
class RunOrder:
    """A run as its client knows it. run_ids: all ids that it got for its key. reported: its end by the
    API."""

    key: str
    tenant: str
    asked_at: float
    run_ids: list[str] = field(default_factory=list)
    problem: str = ""
    cancel: str = ""
    reported: str = ""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as the database stores it. finished_at: Unix seconds; None: never."""

    id: str
    state: str
    error_code: str
    finished_at: float | None


def read_runs(lines: Iterable[Mapping[str, Any]]) -> list[RunOrder]:
    """Return the runs of a ledger. lines: its JSON objects."""
    orders: dict[str, RunOrder] = {}
    by_run: dict[str, RunOrder] = {}
    for line in lines:
        what = line["what"]
        if what == "run_asked":
            orders[line["key"]] = RunOrder(line["key"], line["tenant"], line["at"])
        elif what == "run_accepted":
            order = by_run[line["run"]] = orders[line["key"]]
            if line["run"] not in order.run_ids:
                order.run_ids.append(line["run"])
        elif what == "run_problem":
            orders[line["key"]].problem = line["error"]
        elif what == "run_cancel":
            by_run[line["run"]].cancel = line["outcome"]
        elif what == "run_reported":
            by_run[line["run"]].reported = line["status"]
    return list(orders.values())


def compare_runs(
    orders: Sequence[RunOrder],
    rows: Mapping[str, RunRow],
    jobs: Iterable[JobRow],
    forgotten: Sequence[tuple[float, float]] = (),
) -> Iterator[Finding]:
    """Each accepted run must be there once, have ended, and as its client was informed.

    jobs: of the database. forgotten: when commits were lost, Unix seconds; runs of these times are not
    judged."""
    failed = {job.run for job in jobs if job.run and job.state == "failed" and job.error_code in _EXPLAINED}
    known: set[str] = set()
    for order in orders:
        known.update(order.run_ids)
        found = [rows[run_id] for run_id in order.run_ids if run_id in rows]
        ends = [row.finished_at or float("inf") for row in found] or [float("inf")]
        if any(order.asked_at <= last and max(ends) >= first for first, last in forgotten):
            continue
        if len(order.run_ids) > 1:
            yield Finding("two_runs", f"one key started {order.run_ids}", order.run_ids[0])
        if not order.run_ids:
            yield Finding("run_never_accepted", f"{order.key}: {order.problem or 'no answer yet'}")
        elif not found:
            yield Finding("run_lost", "was accepted and is not in the database", order.run_ids[0])
        for row in found:
            yield from _compare(order, row, is_explained=row.id in failed)
    if not forgotten:
        for run_id in sorted(rows.keys() - known):
            yield Finding("unknown_run", "is in the database, and no client knows it", run_id)


def _compare(order: RunOrder, row: RunRow, *, is_explained: bool) -> Iterator[Finding]:
    if row.state not in OVER:
        yield Finding("run_not_over", f"is {row.state} after the drain", row.id)
    if order.reported and order.reported != row.state:
        yield Finding(
            "run_told_otherwise", f"its client read {order.reported}, the database says {row.state}", row.id
        )
    if row.state == "cancelled" and not order.cancel:
        yield Finding("run_cancelled_unasked", "is cancelled, and its client did not ask for it", row.id)
    if row.state == "failed" and not is_explained:
        yield Finding("run_failed", f"failed with {row.error_code}, which no fault explains", row.id)
