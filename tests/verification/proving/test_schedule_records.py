"""The judge of schedules: each contradiction between clients, GPU servers and database is a finding."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.verification.proving.made import attempt, log, row, run
from verification.proving.records import JobRow, Run
from verification.proving.schedule_mix import CATCH_UP_SECONDS, PlannedSchedule, planned_schedules
from verification.proving.schedule_records import (
    Firing,
    ScheduledJob,
    ScheduleOrder,
    StoredFirings,
    compare_schedules,
    read_schedules,
)
from workflows.schedules.domain.policy import CatchUp, Overlap

PLAN = PlannedSchedule("s", "ada", 10.0, "skip", "last", 0.5, "prove-image")
CANCELS = replace(PLAN, overlap="cancel_previous")
FIRST = Firing("s", 1000.0, 1000.0, 1, "started", "", 1000.5, "j1", "", "completed", 1003.0)
SECOND = Firing("s", 1010.0, 1010.0, 1, "started", "", 1010.5, "j2", "", "completed", 1013.0)
LATE = replace(SECOND, outcome="missed", reason="late", at=1060.0, job="", end_state="", ended_at=None)
OVERLAP = replace(LATE, outcome="skipped", reason="overlap", at=1010.5)
JOBS = (ScheduledJob("j1", "s", 1000.0), ScheduledJob("j2", "s", 1010.0))
FORGOTTEN = ((1009.0, 1011.0),)
THIRD = replace(JOBS[1], job="j3")
MOVED = replace(JOBS[1], due_at=1000.0)
FAILED_RUN = replace(SECOND, job="", run="r", end_state="failed")


def job(number: int, **fields: Any) -> JobRow:
    usual = {"id": f"j{number}", "result_attempt": f"a{number}", "attempts": (attempt(id=f"a{number}"),)}
    return row(**(usual | {"schedule": "s"} | fields))


def gpu_run(number: int, started: float, ended: float) -> Run:
    return run(job_id=f"j{number}", attempt_id=f"a{number}", started=started, ended=ended)


JOB = job(1)
RUNS = (gpu_run(1, 1001.0, 1002.0), gpu_run(2, 1011.0, 1012.0))


def kinds(
    *firings: Firing,
    plan: PlannedSchedule = PLAN,
    jobs: tuple[JobRow, ...] = (JOB, job(2)),
    runs: tuple[Run, ...] = RUNS,
    payloads: tuple[ScheduledJob, ...] = JOBS,
    read: tuple[Firing, ...] | None = None,
    forgotten: tuple[tuple[float, float], ...] = (),
    **order: Any,
) -> list[str]:
    known = {"start_at": 1000.0, "made_at": 999.0, "end_at": 1010.0} | order
    found = list(firings)
    orders = [ScheduleOrder("s", read=found if read is None else list(read), **known)]
    stored = StoredFirings(found, list(payloads), {"r"})
    rows = {one.id: one for one in jobs}
    return [
        one.kind for one in compare_schedules([plan], orders, stored, rows, [log(*runs)], forgotten=forgotten)
    ]


def test_consistent_records_have_no_findings() -> None:
    assert kinds(FIRST, SECOND) == []


@pytest.mark.parametrize(
    ("firings", "changed", "found"),
    [
        ((FIRST,), {"payloads": JOBS[:1]}, ["due_time_lost"]),
        ((FIRST,), {"payloads": JOBS}, ["due_time_lost", "started_unknown"]),
        ((FIRST, SECOND, replace(SECOND, job="")), {}, ["fired_twice", "started_nothing"]),
        ((FIRST, SECOND, replace(SECOND, due_at=1025.0)), {"read": ()}, ["firings_client_read_differs"]),
        ((FIRST, replace(SECOND, job="j9")), {"payloads": JOBS[:1]}, ["started_nothing"]),
        ((FIRST, replace(SECOND, at=1007.0)), {}, ["fired_early"]),
        ((FIRST, SECOND), {"runs": (RUNS[0], gpu_run(2, 1005.0, 1006.0))}, ["ran_early"]),
        ((FIRST, SECOND), {"runs": (gpu_run(1, 1001.0, 1014.0), RUNS[1])}, ["firings_overlap"]),
        ((FIRST, SECOND), {"payloads": (*JOBS, THIRD)}, ["started_unknown", "fired_twice"]),
        ((FIRST, SECOND), {"payloads": (JOBS[0], MOVED)}, ["started_for_another", "fired_twice"]),
        ((FIRST, SECOND), {"jobs": (JOB, job(2, state="failed"))}, ["scheduled_job_failed"]),
        ((FIRST, SECOND), {"jobs": (JOB, job(2, state="cancelled"))}, ["cancelled_unasked"]),
        ((FIRST, replace(SECOND, end_state="")), {}, ["firing_not_over"]),
        ((FIRST, FAILED_RUN), {"payloads": JOBS[:1]}, ["scheduled_run_failed"]),
        ((FIRST, SECOND), {"end_at": None}, ["schedule_refused"]),
        ((FIRST, replace(SECOND, until_at=1020.0, count=2)), {}, ["firing_of_no_due_time"]),
    ],
)  # fmt: skip
def test_each_contradiction_is_found(firings: Any, changed: dict[str, Any], found: list[str]) -> None:
    assert set(found) <= set(kinds(*firings, **changed))


@pytest.mark.parametrize(
    ("plan", "firing", "found"),
    [
        (PLAN, LATE, []),
        (replace(PLAN, catch_up="all"), LATE, ["due_time_missed"]),
        (PLAN, replace(LATE, at=1025.0), ["due_time_missed"]),
        (replace(PLAN, period=60.0), replace(LATE, at=1045.0), ["due_time_missed"]),
        (replace(PLAN, catch_up="none"), replace(SECOND, at=1060.0), ["due_time_missed"]),
        (PLAN, OVERLAP, ["due_time_missed"]),
        (replace(PLAN, overlap="allow"), OVERLAP, ["due_time_missed"]),
        (PLAN, replace(OVERLAP, reason="tenant_queue_full"), ["due_time_missed"]),
        (
            replace(PLAN, overlap="cancel_previous"),
            replace(OVERLAP, reason="superseded"),
            ["due_time_missed"],
        ),
    ],
)
def test_a_due_time_is_missed_only_by_its_policy(
    plan: PlannedSchedule, firing: Firing, found: list[str]
) -> None:
    first = replace(FIRST, due_at=1010.0 - plan.period, until_at=1010.0 - plan.period, job="", run="r")
    payloads = JOBS[1:] if firing.job else ()
    known = {"start_at": first.due_at, "made_at": first.due_at - 1}
    assert kinds(first, firing, plan=plan, payloads=payloads, runs=(), **known) == found


def test_a_newer_firing_explains_why_one_was_superseded() -> None:
    first = replace(OVERLAP, due_at=1000.0, until_at=1000.0, reason="superseded", at=1010.5)
    assert kinds(first, SECOND, plan=CANCELS, payloads=JOBS[1:]) == []


def test_an_overlap_with_an_earlier_firing_explains_a_skip() -> None:
    assert kinds(replace(FIRST, ended_at=1011.0), OVERLAP, payloads=JOBS[:1], runs=()) == []


def test_due_times_when_commits_were_lost_are_not_judged() -> None:
    assert kinds(FIRST, payloads=JOBS, forgotten=FORGOTTEN) == []


def test_a_ledger_is_read() -> None:
    firing = {name: getattr(FIRST, name) for name in Firing.__slots__}
    lines: list[dict[str, Any]] = [
        {"what": "asked"},
        {"what": "schedule_put", "schedule": "s", "start_at": 1000, "made_at": 999.0},
        {"what": "schedule_end", "schedule": "s", "end_at": 1010},
        {"what": "schedule_firing", **firing},
        {"what": "schedule_problem", "schedule": "t", "error": "refused"},
    ]
    read, refused = read_schedules(lines)
    assert read == ScheduleOrder("s", 1000, 999.0, 1010, read=[FIRST])
    assert refused.problem == "refused"


def test_a_trial_has_each_policy_and_its_due_times() -> None:
    planned = planned_schedules(prefix="p", tenants=["ada", "bob"], shortest=10.0)
    assert {one.overlap for one in planned} == set(Overlap)
    assert {one.catch_up for one in planned} == set(CatchUp)
    assert all(one.period >= 10.0 for one in planned)
    assert CATCH_UP_SECONDS == 3600.0
    assert list(PLAN.due_times(1000.0, 999.0, 1020.0)) == [1000.0, 1010.0, 1020.0]
    minute = next(one for one in planned if one.is_cron)
    start_at = datetime(2026, 1, 1, 0, 0, 30, tzinfo=UTC).timestamp()
    assert [due - start_at for due in minute.due_times(start_at, start_at, start_at + 100)] == [30.0, 90.0]
