"""The sweep `due_starts`: scheduled jobs are queued at their time, and are not charged if they never
start."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from jobs import transitions
from jobs.domain.states import JobState
from jobs.models import Event, Job
from jobs.sweeps import deadlines, due_starts
from jobs.sweeps.base import SweepCount
from tests.support.by_process import run_sweep
from tests.support.queue_harness import QueueHarness


def later(queue: QueueHarness, seconds: float, **fields: object) -> Job:
    at = queue.clock.now() + timedelta(seconds=seconds)
    values = {"state": "scheduled", "run_at": at, "place_us": int(at.timestamp() * 1_000_000), **fields}
    return queue.job(push=False, **values)


def test_a_scheduled_job_is_queued_at_its_time_and_not_before(queue: QueueHarness) -> None:
    queue.server()
    job = later(queue, 10.0)
    queue.clock.advance(9.9)
    assert due_starts.sweep(queue.ports).looked == 0
    assert queue.leases.claim("m", worker="w", attempt_id="a") is None
    queue.clock.advance(0.1)
    assert due_starts.sweep(queue.ports).repaired == 1
    assert queue.claim(written=False).job_id == job.id
    assert queue.announced == [job.id]
    result = list(Event.objects.order_by("seq").values_list("type", "data__status"))
    assert result == [("scheduled", "scheduled"), ("queued", "queued")]


def test_a_new_process_with_differing_clocks_starts_no_job_before_the_comparison(
    queue: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = later(queue, 10)
    queue.clock.advance(300)
    monkeypatch.setattr(type(queue.ports.clock_watch), "is_learning", lambda clocks: True)
    count = due_starts.sweep(queue.ports)
    assert (count.repaired, len(count.notes)) == (0, 1)
    assert Job.objects.get(id=job.id).state == JobState.SCHEDULED
    monkeypatch.undo()
    assert due_starts.sweep(queue.ports).repaired == 1


def test_no_job_starts_early_after_the_time_was_set_back(
    queue: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = later(queue, 10)
    queue.clock.advance(300)

    def learn(clocks: object) -> bool:
        queue.clock.advance(-300)
        return False

    monkeypatch.setattr(type(queue.ports.clock_watch), "is_learning", learn)
    assert due_starts.sweep(queue.ports).repaired == 0
    assert Job.objects.get(id=job.id).state == JobState.SCHEDULED


def test_no_other_sweep_queues_a_scheduled_job_early(queue: QueueHarness) -> None:
    queue.server()
    later(queue, 3600.0)
    queue.clock.advance(60)
    run_sweep("reconcile", queue.ports)
    assert queue.leases.claim("m", worker="w", attempt_id="a") is None


def test_a_scheduled_job_is_ordered_by_its_start_time(queue: QueueHarness) -> None:
    queue.server()
    job = later(queue, 10.0)
    queue.clock.advance(5)
    before = queue.job()
    queue.clock.advance(10)
    after = queue.job()
    due_starts.sweep(queue.ports)
    order = []
    for _ in range(3):
        lease = queue.claim(written=False)
        order.append(lease.job_id)
        queue.release(lease)
        queue.leases.confirm_ends([lease.ref])
    assert order == [before.id, job.id, after.id]


@pytest.mark.database
def test_a_scheduled_job_is_queued_without_redis(queue: QueueHarness) -> None:
    job = later(queue, 0.0)
    queue.redis_is_gone = True
    assert due_starts.sweep(queue.ports).repaired == 1
    assert Job.objects.get(id=job.id).state == JobState.QUEUED, "`reconcile` has pushed the ticket"


def test_a_job_cancelled_meanwhile_stays_cancelled(queue: QueueHarness) -> None:
    from jobs.operations.jobs import cancel_job

    job = later(queue, 5.0)
    cancel_job(job.id, ports=queue.ports)
    queue.clock.advance(10)
    assert due_starts.sweep(queue.ports).looked == 0
    assert Job.objects.get(id=job.id).state == JobState.CANCELLED


def test_a_job_that_never_started_has_a_clear_error_and_no_cost(queue: QueueHarness) -> None:
    at = queue.clock.now() + timedelta(seconds=10)
    job = later(queue, 10.0, start_deadline_at=at + timedelta(seconds=5))
    queue.clock.advance(11)
    assert deadlines.sweep(queue.ports).repaired == 0, "the start deadline counts from `run_at`"
    due_starts.sweep(queue.ports)
    queue.clock.advance(5)
    assert deadlines.sweep(queue.ports).repaired == 1
    job.refresh_from_db()
    assert (job.state, job.error_code, job.started_at) == (JobState.FAILED, "start_deadline_exceeded", None)
    assert "did not start" in job.error_message
    assert (job.attempts.count(), job.tries) == (0, 0)


def test_many_jobs_of_one_time_share_transactions_and_keep_their_order(queue: QueueHarness) -> None:
    queue.server()
    jobs = [later(queue, second).id for second in range(10)]
    queue.clock.advance(20)
    with CaptureQueriesContext(connection) as queries:
        assert due_starts.sweep(queue.ports, batch=4) == SweepCount(10, 10)
    sql = [query["sql"].split()[0] for query in queries.captured_queries]
    assert sql.count("RELEASE") == 3, "transactions"
    assert queue.announced == jobs
    assert sum(queue.leases.depth("m").waiting.values()) == 10


def test_many_jobs_of_one_time_do_not_delay_the_tick(
    queue: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.server()
    for _ in range(10):
        later(queue, 0.0)
    real = transitions.queue_scheduled

    def slowly(job_id: str, now: datetime) -> Job | None:
        queue.clock.advance(0.2)
        return real(job_id, now)

    monkeypatch.setattr(transitions, "queue_scheduled", slowly)
    assert [due_starts.sweep(queue.ports, batch=2).repaired for _ in range(3)] == [4, 4, 2]


@pytest.mark.database
def test_a_row_that_cannot_be_moved_does_not_stop_the_others(
    queue: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.server()
    first, bad, last = (later(queue, 0.0).id for _ in range(3))
    real = transitions.queue_scheduled

    def move(job_id: str, now: datetime) -> Job | None:
        if job_id == bad:
            raise ValueError("bad")
        return real(job_id, now)

    monkeypatch.setattr(transitions, "queue_scheduled", move)
    assert due_starts.sweep(queue.ports) == SweepCount(3, 2, 1)
    assert sorted(queue.announced) == sorted([first, last])
    assert sum(queue.leases.depth("m").waiting.values()) == 2


@pytest.mark.database
def test_a_busy_database_is_not_tried_for_each_row(
    queue: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.server()
    for _ in range(3):
        later(queue, 0.0)
    calls: list[str] = []

    def busy(job_id: str, now: datetime) -> Job | None:
        calls.append(job_id)
        raise OperationalError("database is locked")

    monkeypatch.setattr(transitions, "queue_scheduled", busy)
    assert due_starts.sweep(queue.ports) == SweepCount(3, 0, 3)
    assert len(calls) == 1
