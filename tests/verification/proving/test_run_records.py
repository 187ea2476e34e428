"""The judge of runs of workflows: each contradiction between clients and database is a finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.verification.proving.made import log, message, row, rows
from verification.proving.judge import compare_rows_with_runs
from verification.proving.records import Message
from verification.proving.run_kinds import (
    ASKS,
    ERASED,
    FAILS,
    HURRIES,
    INLINE,
    KINDS,
    RunKind,
    definition,
)
from verification.proving.run_mix import JOBS, SHARE_OF_JOBS, has_run, planned_run
from verification.proving.run_records import (
    RunOrder,
    RunRow,
    compare_run_messages,
    compare_runs,
    read_runs,
)
from workflows.definition.read import read_definition

ORDER = RunOrder("k", "ada", 10.0, ["r"], reported="completed")
ROW = RunRow("r", "completed", "", 20.0, nodes={"last": "completed"})
FAILED = replace(ROW, state="failed", error_code="node_failed")


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
        (replace(ORDER, reported="failed"), [ROW], ["run_client_read_differs"]),
        (
            replace(ORDER, reported="cancelled"),
            [replace(ROW, state="cancelled")],
            ["run_cancelled_unasked"],
        ),
        (
            replace(ORDER, reported="failed"),
            [replace(ROW, state="failed", error_code="stalled")],
            ["run_ended_otherwise"],
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


NODES = {"person": "cancelled", "report": "completed"}


@pytest.mark.parametrize(
    ("kind", "row_", "found"),
    [
        (FAILS, replace(FAILED, nodes=NODES), []),
        (FAILS, replace(FAILED, error_code="stalled", nodes=NODES), ["run_ended_otherwise"]),
        (FAILS, replace(FAILED, nodes={**NODES, "person": "running"}), ["run_node_wrong"]),
        (FAILS, replace(FAILED, nodes={"person": "cancelled"}), ["run_node_wrong"]),
        (FAILS, ROW, ["run_ended_otherwise"]),
        (HURRIES, replace(FAILED, error_code="deadline_exceeded", nodes=NODES), []),
        (HURRIES, replace(FAILED, nodes=NODES), ["run_ended_otherwise"]),
        (ASKS, ROW, []),
        (ASKS, replace(ROW, nodes={"last": "skipped"}), ["run_node_wrong"]),
        (INLINE, FAILED, ["run_ended_otherwise"]),
        (ERASED, replace(ROW, is_erased=True), []),
        (ERASED, ROW, ["run_not_erased"]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_each_kind_of_runs_has_its_end(kind: RunKind, row_: RunRow, found: list[str]) -> None:
    order = replace(ORDER, kind=kind.name, is_erased=kind.is_erased, reported=row_.state)
    assert kinds(order, row_) == found


def test_the_data_of_an_erased_job_names_no_attempt() -> None:
    erased = row(result_attempt=None, is_erased=True)
    assert list(compare_rows_with_runs(rows(erased), [log()], {"gpu": 1})) == []
    kept = replace(erased, is_erased=False)
    assert [one.kind for one in compare_rows_with_runs(rows(kept), [log()], {"gpu": 1})] == [
        "result_of_another"
    ]


def test_runs_of_schedules_are_known() -> None:
    other = replace(ROW, id="s")
    assert list(compare_runs([ORDER], {"r": ROW, "s": other}, (), scheduled={"s"})) == []


def test_a_failure_that_a_fault_explains_is_none() -> None:
    failed = FAILED
    job = row(run="r", state="failed", error_code="poison")
    assert list(compare_runs([replace(ORDER, reported="failed")], {"r": failed}, [job])) == []


def test_runs_of_a_time_when_commits_were_lost_are_not_judged() -> None:
    assert kinds(ORDER, forgotten=[(11.0, 12.0)]) == []
    assert kinds(ORDER, replace(ROW, finished_at=10.5), forgotten=[(11.0, 12.0)]) == []
    assert kinds(replace(ORDER, asked_at=13.0), forgotten=[(11.0, 12.0)]) == ["run_lost"]


def test_a_ledger_is_read() -> None:
    lines: list[dict[str, Any]] = [
        {"what": "asked"},
        {"what": "run_asked", "key": "k", "tenant": "ada", "at": 10.0, "kind": "erased"},
        {"what": "run_accepted", "key": "k", "run": "r", "at": 10.1},
        {"what": "run_cancel", "run": "r", "outcome": "over"},
        {"what": "run_erased", "run": "r", "outcome": "erased"},
        {"what": "run_reported", "run": "r", "status": "completed"},
    ]
    assert read_runs(lines) == [replace(ORDER, cancel="over", kind="erased", is_erased=True)]


def test_a_fifth_of_the_jobs_belong_to_runs() -> None:
    runs = sum(has_run(number, 1) for number in range(10_000))
    assert runs * JOBS / (10_000 + runs * JOBS) == pytest.approx(SHARE_OF_JOBS, abs=0.02)
    planned = [planned_run(number, seed=1, prefix="p", tenants=["ada"]) for number in range(200)]
    assert planned[3].key == "p-run-3"
    assert {one.kind for one in planned} == KINDS.keys()
    assert {one.kind for one in planned if one.restarted} == {"film", "fails"}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_kind_has_a_definition_with_the_nodes_that_are_judged(kind: RunKind) -> None:
    spec = definition("prove", kind)
    assert read_definition(spec).nodes
    assert {key for key, _ in kind.nodes} <= spec["nodes"].keys()
