"""The judge of runs of workflows: each contradiction between clients and database is a finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.verification.proving.made import message, row
from verification.proving.records import Message
from verification.proving.run_mix import JOBS, SHARE_OF_JOBS, definition, has_run, planned_run
from verification.proving.run_records import (
    RunOrder,
    RunRow,
    compare_run_messages,
    compare_runs,
    read_runs,
)
from workflows.definition.read import read_definition

ORDER = RunOrder("k", "ada", 10.0, ["r"], reported="completed")
ROW = RunRow("r", "completed", "", 20.0)


def kinds(order: RunOrder = ORDER, *rows: RunRow, **more: Any) -> list[str]:
    return [one.kind for one in compare_runs([order], {one.id: one for one in rows}, (), **more)]


def test_consistent_records_have_no_findings() -> None:
    assert kinds(ORDER, ROW) == []


@pytest.mark.parametrize(
    ("order", "rows", "found"),
    [
        (ORDER, [], ["run_lost"]),
        (replace(ORDER, run_ids=[], problem="refused"), [], ["run_never_accepted"]),
        (replace(ORDER, run_ids=["r", "s"]), [ROW, replace(ROW, id="s")], ["two_runs"]),
        (ORDER, [ROW, replace(ROW, id="other")], ["unknown_run"]),
        (replace(ORDER, reported=""), [replace(ROW, state="running", finished_at=None)], ["run_not_over"]),
        (replace(ORDER, reported="failed"), [ROW], ["run_told_otherwise"]),
        (
            replace(ORDER, reported="cancelled"),
            [replace(ROW, state="cancelled")],
            ["run_cancelled_unasked"],
        ),
        (
            replace(ORDER, reported="failed"),
            [replace(ROW, state="failed", error_code="stalled")],
            ["run_failed"],
        ),
    ],
)
def test_each_contradiction_is_found(order: RunOrder, rows: list[RunRow], found: list[str]) -> None:
    assert kinds(order, *rows) == found


CALLED = replace(ORDER, callback=True)
TWICE = replace(ROW, ends=("completed", "failed"), tries={1: 1, 2: 1})
FIRST = message(webhook_id="m1", job_id="", run_id="r", at=15.0)
SECOND = message(webhook_id="m2", job_id="", run_id="r", round=2, status="failed", at=16.0)


@pytest.mark.parametrize(
    ("order", "row_", "messages", "found"),
    [
        (CALLED, TWICE, [FIRST, SECOND], []),
        (CALLED, TWICE, [FIRST, SECOND, FIRST], []),
        (CALLED, TWICE, [FIRST], ["run_callback_missing"]),
        (CALLED, TWICE, [SECOND, FIRST], ["run_callback_order"]),
        (CALLED, replace(TWICE, tries={1: 2}), [SECOND, FIRST], []),
        (CALLED, TWICE, [FIRST, SECOND, replace(SECOND, webhook_id="m3")], ["run_callback_doubled"]),
        (CALLED, TWICE, [FIRST, replace(SECOND, status="completed")], ["run_callback_wrong"]),
        (CALLED, TWICE, [FIRST, replace(SECOND, signed=False)], ["run_callback_unsigned"]),
        (CALLED, replace(TWICE, ends=("completed",)), [FIRST, SECOND], ["run_callback_wrong"]),
        (ORDER, TWICE, [FIRST], ["run_callback_unasked"]),
        (ORDER, ROW, [replace(FIRST, run_id="other")], ["run_callback_unknown"]),
    ],
)
def test_each_contradiction_of_callbacks_is_found(
    order: RunOrder, row_: RunRow, messages: list[Message], found: list[str]
) -> None:
    assert [one.kind for one in compare_run_messages([order], {"r": row_}, messages)] == found
    assert list(compare_run_messages([order], {"r": row_}, messages, [(9.0, 12.0)])) == []


def test_runs_of_schedules_are_known() -> None:
    other = replace(ROW, id="s")
    assert list(compare_runs([ORDER], {"r": ROW, "s": other}, (), scheduled={"s"})) == []


def test_a_failure_that_a_fault_explains_is_none() -> None:
    failed = replace(ROW, state="failed", error_code="node_failed")
    job = row(run="r", state="failed", error_code="poison")
    assert list(compare_runs([replace(ORDER, reported="failed")], {"r": failed}, [job])) == []


def test_runs_of_a_time_when_commits_were_lost_are_not_judged() -> None:
    assert kinds(ORDER, forgotten=[(11.0, 12.0)]) == []
    assert kinds(ORDER, replace(ROW, finished_at=10.5), forgotten=[(11.0, 12.0)]) == []
    assert kinds(replace(ORDER, asked_at=13.0), forgotten=[(11.0, 12.0)]) == ["run_lost"]


def test_a_ledger_is_read() -> None:
    lines: list[dict[str, Any]] = [
        {"what": "asked"},
        {"what": "run_asked", "key": "k", "tenant": "ada", "at": 10.0},
        {"what": "run_accepted", "key": "k", "run": "r", "at": 10.1},
        {"what": "run_cancel", "run": "r", "outcome": "over"},
        {"what": "run_reported", "run": "r", "status": "completed"},
    ]
    assert read_runs(lines) == [replace(ORDER, cancel="over")]


def test_a_fifth_of_the_jobs_belong_to_runs() -> None:
    assert read_definition(definition("prove")).nodes.keys() == {"first", "both", "last"}
    runs = sum(has_run(number, 1) for number in range(10_000))
    assert runs * JOBS / (10_000 + runs * JOBS) == pytest.approx(SHARE_OF_JOBS, abs=0.02)
    assert planned_run(3, seed=1, prefix="p", tenants=["ada"]).key == "p-run-3"
