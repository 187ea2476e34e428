"""Sweeps move many rows per transaction, and a bad row does not affect the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from jobs import transitions
from jobs.domain.states import JobState
from jobs.models import Callback, Job
from jobs.operations import jobs as job_operations
from jobs.sweeps import deadlines, due_retries
from jobs.sweeps.base import SweepCount
from tests.support.queue_harness import QueueHarness


def due_retry(queue: QueueHarness) -> Job:
    now = queue.clock.now()
    return queue.job(push=False, state=JobState.RETRYING.value, due_at=now)


def retry_to_cancel(queue: QueueHarness) -> Job:
    now = queue.clock.now()
    fields = {"state": JobState.RETRYING.value, "due_at": now, "cancel_requested_at": now}
    return queue.job(push=False, callback_url="https://x.example/", **fields)


def past_deadline(queue: QueueHarness) -> Job:
    return queue.job(deadline_at=queue.clock.now(), callback_url="https://x.example/")


@dataclass(frozen=True, slots=True)
class Case:
    """make: creates a row for the sweep. move: the transition that the sweep calls. state: the state after
    it."""

    sweep: Callable[..., SweepCount]
    make: Callable[[QueueHarness], Job]
    move: str
    state: JobState


CASES = [
    pytest.param(Case(due_retries.sweep, due_retry, "queue_retry", JobState.QUEUED), id="due_retries"),
    pytest.param(
        Case(due_retries.sweep, retry_to_cancel, "end_cancelled", JobState.CANCELLED), id="cancelled"
    ),
    pytest.param(Case(deadlines.sweep, past_deadline, "end_waiting", JobState.FAILED), id="deadlines"),
]


@pytest.mark.parametrize("case", CASES)
def test_rows_share_transactions(queue: QueueHarness, case: Case) -> None:
    queue.server()
    jobs = [case.make(queue).id for _ in range(10)]
    with CaptureQueriesContext(connection) as queries:
        assert case.sweep(queue.ports, batch=4) == SweepCount(10, 10)
    assert [query["sql"].split()[0] for query in queries.captured_queries].count("RELEASE") == 3, (
        "transactions"
    )
    assert set(Job.objects.values_list("state", flat=True)) == {case.state.value}
    assert sorted(queue.announced) == sorted(jobs)
    assert sorted(queue.callbacks) == sorted(Callback.objects.values_list("id", flat=True))
    assert sum(queue.leases.depth("m").waiting.values()) == (10 if case.state is JobState.QUEUED else 0)


@pytest.mark.parametrize("error", [ValueError("bad"), OperationalError("malformed JSON")])
@pytest.mark.parametrize("case", CASES)
def test_a_row_that_cannot_be_moved_does_not_stop_the_others(
    queue: QueueHarness, monkeypatch: pytest.MonkeyPatch, case: Case, error: Exception
) -> None:
    queue.server()
    first, bad, last = (case.make(queue).id for _ in range(3))
    real = getattr(transitions, case.move)

    def moved(job_id: str, *rest: Any, **named: Any) -> Any:
        if job_id == bad:
            raise error
        return real(job_id, *rest, **named)

    monkeypatch.setattr(transitions, case.move, moved)
    assert case.sweep(queue.ports) == SweepCount(3, 2, 1)
    assert set(Job.objects.filter(state=case.state.value).values_list("id", flat=True)) == {first, last}
    assert sorted(queue.announced) == sorted([first, last])


def test_a_ticket_that_cannot_be_removed_delays_only_its_own_job(
    queue: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.server()
    first, bad, last = (past_deadline(queue).id for _ in range(3))
    real = job_operations.remove_tickets

    def take(job: Job, *rest: Any) -> bool:
        if job.id == bad:
            raise ValueError("bad")
        return real(job, *rest)

    monkeypatch.setattr(deadlines, "remove_tickets", take)
    assert deadlines.sweep(queue.ports) == SweepCount(3, 2, 1)
    assert set(Job.objects.filter(state="failed").values_list("id", flat=True)) == {first, last}


@pytest.mark.database
def test_a_busy_database_is_not_tried_for_each_row(
    queue: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.server()
    for _ in range(3):
        due_retry(queue)
    calls: list[str] = []

    def busy(job_id: str, now: datetime) -> Job | None:
        calls.append(job_id)
        raise OperationalError("database is locked")

    monkeypatch.setattr(transitions, "queue_retry", busy)
    assert due_retries.sweep(queue.ports) == SweepCount(3, 0, 3)
    assert len(calls) == 1
    assert not queue.announced


@pytest.mark.database
@pytest.mark.parametrize("case", CASES)
def test_rows_are_locked_in_the_order_of_their_jobs(
    queue: QueueHarness, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    """The same order as in group commits; another order could deadlock."""
    queue.server()
    jobs = [case.make(queue).id for _ in range(5)]
    for number, job_id in enumerate(reversed(jobs)):
        at = queue.clock.now() - timedelta(seconds=60 - number)
        due = "deadline_at" if case.state is JobState.FAILED else "due_at"
        Job.objects.filter(id=job_id).update(**{due: at})
    calls: list[str] = []
    real = getattr(transitions, case.move)

    def moved(job_id: str, *rest: Any, **named: Any) -> Any:
        calls.append(job_id)
        return real(job_id, *rest, **named)

    monkeypatch.setattr(transitions, case.move, moved)
    assert case.sweep(queue.ports) == SweepCount(5, 5)
    assert calls == sorted(jobs)
