"""Collects the records after the drain, and judges them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from verification.proving import judge
from verification.proving.artifact_records import compare_artifacts
from verification.proving.judge import Finding
from verification.proving.ledger import read_lines
from verification.proving.memory import Slope, memory_findings
from verification.proving.records import (
    Answer,
    JobRow,
    Message,
    NodeLog,
    Order,
    read_messages,
    read_node_log,
    read_orders,
)
from verification.proving.run_records import RunOrder, compare_run_messages, compare_runs, read_runs
from verification.proving.schedule_records import (
    Firing,
    ScheduleOrder,
    StoredFirings,
    compare_schedules,
    read_schedules,
)

if TYPE_CHECKING:
    from verification.proving.trial import Trial


FORGET_SLACK_SECONDS = 3.0
"""An end is committed after its run, a start before or after its begin."""


@dataclass(slots=True)
class Records:
    """The records of a trial. rows, firings: None if the database is not accessible."""

    orders: dict[str, Order]
    answers: list[Answer]
    rows: dict[str, JobRow] | None
    logs: list[NodeLog]
    messages: list[Message]
    runs: list[RunOrder] = field(default_factory=list)
    schedules: list[ScheduleOrder] = field(default_factory=list)
    firings: StoredFirings | None = None


@dataclass(slots=True)
class Outcome:
    """The judgement of a trial. skipped: checks that were not possible."""

    wrongs: list[Finding]
    totals: dict[str, Any]
    slopes: list[Slope] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def read_records(trial: Trial) -> Records:
    """Read the records of a trial."""
    orders, answers = read_orders(trial.ledger)
    rows = None if trial.state is None else {row.id: row for row in trial.state.rows()}
    logs = [read_node_log(gpu.name, read_lines(gpu.log)) for gpu in trial.fleet.gpus]
    if trial.pinned_log.exists():
        logs.append(read_node_log(trial.pinned_server, read_lines(trial.pinned_log)))
    messages = list(read_messages(read_lines(trial.receiver.log)))
    return Records(
        orders,
        answers,
        rows,
        logs,
        messages,
        read_runs(read_lines(trial.ledger)),
        read_schedules(read_lines(trial.ledger)),
        None if trial.state is None else trial.state.firings(),
    )


def judge_records(trial: Trial, records: Records) -> Outcome:
    """Judge the records by all checks."""
    slopes = trial.watch.samples.slopes()
    skipped: list[str] = []
    wrongs = [*trial.watch.wrongs.values(), *memory_findings(_dispatchers(slopes))]
    wrongs += compare_schedules(
        trial.planned_schedules,
        records.schedules,
        records.firings,
        records.rows or {},
        records.logs,
        forgotten=trial.forgotten,
    )
    if trial.forgotten:
        records, left_out = without_lost_commits(records, trial.forgotten)
        skipped.append(f"{left_out} jobs that were accepted, ran or called back while commits were lost")
    rows, orders = records.rows, list(records.orders.values())
    if rows is None:
        skipped.append("the database and the laws: only the address of the dispatcher is known")
        rows = rows_as_reported(records)
        wrongs += [
            one for one in judge.compare_ledger_with_rows(orders, rows) if one.kind != "client_read_differs"
        ]
    else:
        wrongs += judge.compare_ledger_with_rows(orders, rows)
        wrongs += judge.check_deadlines(orders, trial.watch.failed_at)
        assert trial.state is not None
        run_rows = trial.state.runs()
        if trial.options.starts_its_own and not trial.forgotten:
            trial.state.collect_garbage()
            stored = replace(trial.state.artifacts(), leftovers=trial.left_in_store())
            wrongs += compare_artifacts(orders, rows, stored)
        scheduled = {one.run for one in records.firings.firings} if records.firings else set()
        wrongs += compare_run_messages(records.runs, run_rows, records.messages, trial.forgotten)
        wrongs += compare_runs(records.runs, run_rows, rows.values(), trial.forgotten, scheduled)
        wrongs += _laws(trial, records, skipped)
        if trial.flushed_at:
            wrongs += judge.check_order(rows, records.logs, trial.flushed_at)
        slots = {gpu.name: gpu.slots for gpu in trial.fleet.gpus} | {trial.pinned_server: 1}
        wrongs += judge.compare_rows_with_runs(rows, records.logs, slots, excused=trial.excuses)
    if any(message.signed is None for message in records.messages):
        skipped.append("the signatures of callbacks: the tenant's secret is not known")
    if trial.state is None:
        skipped.append(f"left behind: servers {trial.prefix}-* stay registered without a process")
    wrongs += judge.requests_to_full_servers(records.logs, trial.excuses)
    wrongs += judge.compare_rows_with_messages(orders, rows, records.messages)
    return Outcome(wrongs, totals(records, rows), slopes, skipped)


def without_lost_commits(records: Records, spans: Sequence[tuple[float, float]]) -> tuple[Records, int]:
    """Return the records of the jobs without a possible loss in the database, and the number of all others.

    spans: when commits were lost, Unix seconds."""

    def is_in(begin: float, end: float) -> bool:
        return any(begin <= last and first <= end for first, last in spans)

    touched = {
        job
        for order in records.orders.values()
        if is_in(order.asked_at, order.accepted_at or order.asked_at)
        for job in order.job_ids
    }
    touched |= {
        run.job_id
        for log in records.logs
        for run in log.runs
        if is_in(run.started - FORGET_SLACK_SECONDS, (run.ended or run.started) + FORGET_SLACK_SECONDS)
    }
    touched |= {one.job_id for one in records.messages if is_in(one.at, one.at)}
    rows = records.rows
    kept = Records(
        orders={
            key: one
            for key, one in records.orders.items()
            if not touched.intersection(one.job_ids)
            and (one.job_ids or not is_in(one.asked_at, one.asked_at))
        },
        answers=records.answers,
        rows=None if rows is None else {job: row for job, row in rows.items() if job not in touched},
        logs=[
            replace(log, runs=[run for run in log.runs if run.job_id not in touched]) for log in records.logs
        ],
        messages=[one for one in records.messages if one.run_id or one.job_id not in touched],
        runs=records.runs,
        schedules=records.schedules,
        firings=records.firings,
    )
    return kept, len(touched)


def rows_as_reported(records: Records) -> dict[str, JobRow]:
    """Return rows as the API reported them to clients, instead of the database's."""
    rows = {}
    for order in records.orders.values():
        if order.reported:
            rows[order.job_id] = JobRow(
                order.job_id, order.tenant, order.model, order.priority, 0, order.reported,
                order.reported_code, 1, order.reported_attempt, (),
            )  # fmt: skip
    return rows


def totals(records: Records, rows: Mapping[str, JobRow]) -> dict[str, Any]:
    """Return the totals for the report."""
    runs = [run for log in records.logs for run in log.runs]
    refusals = Counter(one.why for log in records.logs for one in log.refusals)
    winners = {row.result_attempt for row in rows.values()}
    winners |= {one.id for row in rows.values() if row.is_erased for one in row.attempts}
    thrown = sum(run.outcome == "success" and run.attempt_id not in winners for run in runs)
    signed = Counter(message.signed for message in records.messages)
    statuses = Counter(str(one.status) for one in records.answers if one.status not in (200, 202))
    return {
        "jobs_asked": len(records.orders),
        "jobs_accepted": sum(bool(order.job_ids) for order in records.orders.values()),
        "runs_of_workflows": dict(sorted(Counter(order.reported for order in records.runs).items())),
        "jobs_with_files": sum(bool(order.artifact) for order in records.orders.values()),
        "jobs_of_runs": sum(bool(row.run) for row in rows.values()),
        "firings_of_schedules": dict(Counter(_fate(one) for one in _firings(records))),
        "jobs_by_state": dict(sorted(Counter(row.state for row in rows.values()).items())),
        "failed_by_code": dict(Counter(row.error_code for row in rows.values() if row.state == "failed")),
        "attempts": sum(len(row.attempts) for row in rows.values()),
        "attempts_by_end": dict(
            Counter(
                one.error_code or one.state for row in rows.values() for one in row.attempts if one.error_code
            )
        ),
        "gpu_runs": len(runs),
        "gpu_runs_by_end": dict(Counter(run.outcome for run in runs)),
        "gpu_runs_thrown_away": thrown,
        "gpu_runs_without_a_row": len(judge.unrecorded_runs(rows, records.logs)),
        "late_senders_refused": refusals["stale_fence"],
        "requests_to_a_full_server": refusals["full"],
        "most_runs_at_once": {log.server: log.peak for log in records.logs},
        "callbacks_arrived": len(records.messages),
        "callbacks_repeated": len(records.messages) - len({one.webhook_id for one in records.messages}),
        "callbacks_of_runs": sum(bool(one.run_id) for one in records.messages),
        "callbacks_signed": signed[True],
        "callbacks_not_signed": signed[False],
        "submits_not_accepted_at_once": dict(statuses),
        "slowest_accepted_submit_seconds": max(
            (one.took for one in records.answers if one.status in (200, 202)), default=0.0
        ),
    }


def _firings(records: Records) -> list[Firing]:
    if records.firings is not None:
        return list(records.firings.firings)
    return [firing for order in records.schedules for firing in order.read]


def _fate(firing: Firing) -> str:
    return f"{firing.outcome} {firing.reason}".strip()


def fates(records: Records, rows: Mapping[str, JobRow]) -> Iterator[dict[str, Any]]:
    """Yield one line per job, in order of the submits."""
    runs = Counter(run.job_id for log in records.logs for run in log.runs)
    messages = Counter(message.job_id for message in records.messages)
    for order in records.orders.values():
        row = rows.get(order.job_id)
        yield {
            "job": order.job_id,
            "key": order.key,
            "tenant": order.tenant,
            "model": order.model,
            "priority": order.priority,
            "seconds": order.seconds,
            "state": row.state if row else "lost",
            "code": row.error_code if row else "",
            "attempts": [f"{one.server}/{one.slot} {one.error_code or one.state}" for one in row.attempts]
            if row
            else [],
            "gpu_runs": runs[order.job_id],
            "callbacks": messages[order.job_id],
            "cancel": order.cancel,
        }


def _laws(trial: Trial, records: Records, skipped: list[str]) -> Iterator[Finding]:
    assert trial.state is not None
    foreign = trial.state.unfinished(but=True)
    if foreign:
        skipped.append(f"the laws of a drained dispatcher: it has {foreign} other jobs to do")
        return
    own = trial.options.starts_its_own
    counts = own and not trial.forgotten
    accepted = None
    if counts and records.rows is not None:
        accepted = sum(len(order.job_ids) for order in records.orders.values())
        accepted += sum(bool(row.run or row.schedule) for row in records.rows.values())
    peaks = {log.server: log.peak for log in records.logs}
    for text in trial.state.broken_laws(drained=True, accepted=accepted, peak_running=peaks) or ():
        yield Finding(f"law {text[:3]}", f"{text} (after the drain)")
    if not trial.forgotten:
        for text in trial.state.broken_schedule_laws():
            yield Finding(f"law {text[:4]}", f"{text} (after the drain)")


def _dispatchers(slopes: Sequence[Slope]) -> list[Slope]:
    """Return those of the dispatcher; processes of the trial may keep their records."""
    return [one for one in slopes if not one.name.startswith("prove") and one.name != "valkey"]
