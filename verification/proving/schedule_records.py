"""The record of schedules: the clients' ledger and their own arithmetic against the database and the GPU
servers' logs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from verification.proving.judge import Finding
from verification.proving.records import JobRow, NodeLog, Run
from verification.proving.schedule_mix import GRACE_SECONDS, PlannedSchedule

STARTED, SKIPPED, MISSED = "started", "skipped", "missed"
CLOCK_SLACK_SECONDS = 1.0
"""Between the dispatcher's time and that of the GPU servers and clients."""
_EXPLAINED = ("poison",)
"""Errors of jobs that faults explain."""
_SKIPS: Mapping[str, tuple[str, ...]] = {
    "skip": ("overlap",),
    "queue_one": ("overlap",),
    "queue_all": ("too_many_waiting",),
    "cancel_previous": ("superseded",),
}
"""Reasons of a skip, by overlap policy."""


@dataclass(slots=True)
class ScheduleOrder:
    """A schedule as its client knows it; times in Unix seconds.

    made_at: when its client got the answer, None: never. read: its firings by the API."""

    name: str
    start_at: float = 0.0
    made_at: float | None = None
    end_at: float | None = None
    problem: str = ""
    read: list[Firing] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Firing:
    """The outcome of a due time, or of `count` due times up to until_at. Times in Unix seconds."""

    schedule: str
    due_at: float
    until_at: float
    count: int
    outcome: str
    reason: str
    at: float
    job: str = ""
    run: str = ""
    end_state: str = ""
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """A job that says by its payload which schedule and due time (Unix seconds) it is for."""

    job: str
    schedule: str
    due_at: float


@dataclass(frozen=True, slots=True)
class StoredFirings:
    """The dispatcher's records. jobs: all with such a payload. runs: ids of all runs of workflows."""

    firings: Sequence[Firing]
    jobs: Sequence[ScheduledJob]
    runs: Collection[str]


def read_schedules(lines: Iterable[Mapping[str, Any]]) -> list[ScheduleOrder]:
    """Return the schedules of a ledger. lines: its JSON objects."""
    orders: dict[str, ScheduleOrder] = {}
    for line in lines:
        what = line["what"]
        if not what.startswith("schedule_"):
            continue
        order = orders.setdefault(line["schedule"], ScheduleOrder(line["schedule"]))
        if what == "schedule_put":
            order.start_at, order.made_at = line["start_at"], line["made_at"]
        elif what == "schedule_end":
            order.end_at = line["end_at"]
        elif what == "schedule_problem":
            order.problem = line["error"]
        elif what == "schedule_firing":
            order.read.append(Firing(**{name: value for name, value in line.items() if name != "what"}))
    return list(orders.values())


def compare_schedules(
    planned: Iterable[PlannedSchedule],
    orders: Sequence[ScheduleOrder],
    stored: StoredFirings | None,
    jobs: Mapping[str, JobRow],
    logs: Iterable[NodeLog],
    *,
    forgotten: Sequence[tuple[float, float]] = (),
) -> Iterator[Finding]:
    """Each due time that its client computes must have one firing, whose fate its policy explains, and each
    firing that started one job or run.

    stored: None: the database is not accessible, then the firings are those that the clients read. forgotten:
    when commits were lost, Unix seconds; due times of these times are not judged."""
    runs = _runs_by_job(logs)
    by_name = {one.name: one for one in planned}
    for order in orders:
        plan = by_name[order.name]
        if order.problem or order.made_at is None or order.end_at is None:
            yield Finding("schedule_refused", f"{order.name}: {order.problem or 'not ended'}")
            continue
        firings = order.read if stored is None else _of(order.name, stored.firings)
        firings = sorted(firings, key=lambda one: one.due_at)
        if stored is not None and not forgotten and sorted(order.read, key=lambda one: one.due_at) != firings:
            yield Finding(
                "firings_client_read_differs", f"{order.name}: its client read others than are stored"
            )
        yield from _due_times(plan, order, firings, forgotten)
        yield from _fates(plan, firings, jobs, runs, forgotten)
        if plan.overlap != "allow":
            yield from _overlaps(plan, firings, jobs, runs, forgotten)
    if stored is not None:
        yield from _one_start(stored, jobs, forgotten)


def _due_times(
    plan: PlannedSchedule,
    order: ScheduleOrder,
    firings: Sequence[Firing],
    forgotten: Sequence[tuple[float, float]],
) -> Iterator[Finding]:
    assert order.made_at is not None
    assert order.end_at is not None
    dues = [round(due, 3) for due in plan.due_times(order.start_at, order.start_at - 1.0, order.end_at)]
    fired: Counter[float] = Counter()
    for firing in firings:
        inside = [due for due in dues if firing.due_at - 0.5 <= due <= firing.until_at + 0.5]
        if len(inside) != firing.count:
            text = (
                f"{plan.name}: a firing of {firing.due_at} counts {firing.count} for {len(inside)} due times"
            )
            yield Finding("firing_of_no_due_time", text)
        fired.update(inside)
    for due in dues:
        if due <= order.made_at or _is_in(due, forgotten):
            continue
        if not fired[due]:
            yield Finding("due_time_lost", f"{plan.name}: no firing of {due}")
        elif fired[due] > 1:
            yield Finding("fired_twice", f"{plan.name}: {fired[due]} firings of {due}")


def _fates(
    plan: PlannedSchedule,
    firings: Sequence[Firing],
    jobs: Mapping[str, JobRow],
    runs: Mapping[str, list[Run]],
    forgotten: Sequence[tuple[float, float]],
) -> Iterator[Finding]:
    failed_runs = {job.run for job in jobs.values() if job.state == "failed" and job.error_code in _EXPLAINED}
    for place, firing in enumerate(firings):
        if _is_in(firing.due_at, forgotten):
            continue
        where = f"{plan.name}: the firing of {firing.due_at}"
        if why := _unexplained(plan, firing, firings[:place], firings[place + 1 :]):
            yield Finding("due_time_missed", f"{where} is {firing.outcome} {firing.reason}: {why}")
        if firing.at < firing.due_at - CLOCK_SLACK_SECONDS:
            yield Finding("fired_early", f"{where} was decided {firing.due_at - firing.at:.1f} s before it")
        begun = min((run.started for run in runs.get(firing.job, ())), default=None)
        if begun is not None and begun < firing.due_at - CLOCK_SLACK_SECONDS:
            yield Finding("ran_early", f"{where} ran {firing.due_at - begun:.1f} s before it", firing.job)
        row = jobs.get(firing.job)
        if row is not None and row.state == "failed" and row.error_code not in _EXPLAINED:
            yield Finding("scheduled_job_failed", f"{where} failed with {row.error_code}", row.id)
        if firing.run and firing.end_state == "failed" and firing.run not in failed_runs:
            yield Finding("scheduled_run_failed", f"{where} failed, which no fault explains", firing.run)
        if row is not None and row.state == "cancelled" and plan.overlap != "cancel_previous":
            yield Finding("cancelled_unasked", f"{where} is cancelled without a request", row.id)
        if firing.outcome == STARTED and not firing.end_state:
            yield Finding("firing_not_over", f"{where} has no end after the drain", firing.job)


def _unexplained(
    plan: PlannedSchedule, firing: Firing, earlier: Sequence[Firing], later: Sequence[Firing]
) -> str:
    """Return why the policy does not explain a firing's fate; empty if it does. earlier, later: firings of
    its schedule."""
    if firing.outcome == STARTED:
        late = firing.at - firing.due_at
        waits = plan.overlap not in ("allow", "skip")
        if plan.catch_up == "none" and not waits and late > GRACE_SECONDS + CLOCK_SLACK_SECONDS:
            return f"it was started {late:.0f} s late, and is not to be caught up"
        return ""
    late = firing.at - firing.until_at
    if (firing.outcome, firing.reason) == (MISSED, "late"):
        if plan.catch_up == "all":
            return "all are to be caught up"
        if late < GRACE_SECONDS - CLOCK_SLACK_SECONDS:
            return f"it was only {late:.1f} s late"
        if plan.catch_up == "last" and late < plan.period - CLOCK_SLACK_SECONDS:
            return "it was the last one, which is to be caught up"
        return ""
    if firing.outcome == SKIPPED and firing.reason in _SKIPS.get(plan.overlap, ()):
        if firing.reason == "superseded":
            return "" if later else "there is no newer one"
        ends = [one.ended_at for one in earlier if one.outcome == STARTED]
        if any(end is None or end > firing.at - CLOCK_SLACK_SECONDS for end in ends):
            return ""
        return "no earlier firing ran"
    return f"its overlap policy is {plan.overlap}"


def _overlaps(
    plan: PlannedSchedule,
    firings: Sequence[Firing],
    jobs: Mapping[str, JobRow],
    runs: Mapping[str, list[Run]],
    forgotten: Sequence[tuple[float, float]],
) -> Iterator[Finding]:
    """By the GPU servers' logs: the run that completed a firing's job ended before the next one's began."""
    started = [one for one in firings if one.outcome == STARTED and one.job in runs]
    for earlier, later in pairwise(started):
        row = jobs.get(earlier.job)
        if row is None or row.state != "completed" or _is_in(earlier.due_at, forgotten):
            continue
        ends = [run.ended for run in runs[earlier.job] if run.attempt_id == row.result_attempt]
        begun = min(run.started for run in runs[later.job])
        if ends and ends[0] is not None and begun < ends[0]:
            text = f"{plan.name}: ran {ends[0] - begun:.1f} s beside the firing of {earlier.due_at}"
            yield Finding("firings_overlap", text, later.job)


def _one_start(
    stored: StoredFirings, jobs: Mapping[str, JobRow], forgotten: Sequence[tuple[float, float]]
) -> Iterator[Finding]:
    named = Counter(one for firing in stored.firings for one in (firing.job, firing.run) if one)
    for one, count in named.items():
        if count > 1:
            yield Finding("fired_twice", f"{count} firings name {one}", one)
    for firing in stored.firings:
        is_there = firing.job in jobs or firing.run in stored.runs
        if (firing.outcome == STARTED) != is_there and not _is_in(firing.due_at, forgotten):
            text = f"{firing.schedule}: the firing of {firing.due_at} is {firing.outcome}"
            yield Finding("started_nothing" if firing.outcome == STARTED else "started_anyway", text)
    due_of = {firing.job: firing.due_at for firing in stored.firings if firing.job}
    times: Counter[tuple[str, float]] = Counter()
    for job in stored.jobs:
        times[job.schedule, job.due_at] += 1
        if job.job not in due_of and not _is_in(job.due_at, forgotten):
            yield Finding("started_unknown", f"{job.schedule}: no firing names it", job.job)
        elif job.job in due_of and abs(due_of[job.job] - job.due_at) > 0.001:
            yield Finding("started_for_another", f"{job.schedule}: its firing is of another time", job.job)
    for (name, due), count in times.items():
        if count > 1:
            yield Finding("fired_twice", f"{name}: {count} jobs for {due}")


def _of(name: str, firings: Iterable[Firing]) -> list[Firing]:
    return [one for one in firings if one.schedule == name]


def _runs_by_job(logs: Iterable[NodeLog]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for log in logs:
        for run in log.runs:
            found.setdefault(run.job_id, []).append(run)
    return found


def _is_in(at: float, spans: Sequence[tuple[float, float]]) -> bool:
    """Return True if a due time is handled in one of these spans, or shortly before or after."""
    return any(first - GRACE_SECONDS <= at <= last + GRACE_SECONDS for first, last in spans)
