"""The objects that do the tasks of a process, and the report of a task's jobs in Flower."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from jobs import wakes
from jobs.execution.slot_loop import WorkReport
from jobs.tasks import MAX_NAMED, JobFailed, shown, sweep, work


def test_ticks_do_not_push_the_jobs_out_of_flowers_view() -> None:
    assert (work.send_events, sweep.send_events) == (True, False)


def an_app() -> Celery:
    return Celery("apart", set_as_current=False, fixups=[])


def test_each_celery_app_has_its_own_objects_that_do_its_tasks() -> None:
    ours, others, ran = an_app(), an_app(), list[str]()
    task = ours.tasks[wakes.SWEEP]
    task.hand(SimpleNamespace(run_named=ran.append))
    task("tick")
    assert ran == ["tick"]
    with pytest.raises(RuntimeError, match="queue_worker"):
        others.tasks[wakes.SWEEP]("tick")


def test_a_second_worker_of_a_process_is_refused() -> None:
    task = an_app().tasks[wakes.WORK]
    task.hand(first := SimpleNamespace())
    with pytest.raises(RuntimeError, match="already"):
        task.hand(SimpleNamespace())
    assert task.role is first


def a_report(**fields: Any) -> WorkReport:
    report: dict[str, Any] = {"job_id": "J1", "model": "zimg", "server": "zimg-1", "slot": 0, "attempt": "A1"}
    return WorkReport(**report | {"outcome": "completed", "seconds": 1.5, "error_code": ""} | fields)


def test_one_job_is_shown_whole() -> None:
    assert shown([a_report()]) == {
        "job_id": "J1",
        "model": "zimg",
        "server": "zimg-1",
        "slot": 0,
        "attempt": "A1",
        "outcome": "completed",
        "seconds": 1.5,
    }


def test_one_failed_job_fails_its_task_and_is_named() -> None:
    with pytest.raises(JobFailed, match=r"job_id=J1 .*outcome=failed .*error_code=timeout"):
        shown([a_report(outcome="failed", error_code="timeout")])


def test_many_short_jobs_are_counted_and_the_failed_named() -> None:
    reports = [a_report(), a_report(job_id="J2", error_code="busy"), a_report(job_id="J3")]
    assert shown(reports) == {"jobs": 3, "failed": ["J2 busy"]}


def test_of_many_that_failed_some_are_named() -> None:
    failed = shown([a_report(job_id=f"J{n}", error_code="busy") for n in range(MAX_NAMED + 3)])["failed"]
    assert (len(failed), failed[0], failed[-1]) == (MAX_NAMED + 1, "J0 busy", "and 3 more")


def test_a_wake_without_a_job_reports_zero_jobs() -> None:
    assert shown([]) == {"jobs": 0, "failed": []}
