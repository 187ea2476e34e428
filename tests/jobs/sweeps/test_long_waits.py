"""The sweep `long_waits`: a waiting job fails after its longest wait."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpus.errors import RunFailed, ServerLost
from gpus.models import ModelConfig
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.domain.states import JobState
from jobs.limits.submit_limits import max_queued_seconds, queue_deadline
from jobs.models import Callback, Job, Tenant
from jobs.operations import jobs
from jobs.sweeps import long_waits
from jobs.transitions import End
from tests.support.queue_harness import QueueHarness, attempt_of

MINUTE = timedelta(seconds=60)


def waiting(queue: QueueHarness, **fields: Any) -> Job:
    return queue.job(queue_deadline_at=queue.clock.now() + MINUTE, **fields)


def test_a_job_fails_after_its_longest_wait_and_leaves_the_queue(queue: QueueHarness) -> None:
    queue.server()
    ModelConfig.objects.update(max_queued_seconds=60)
    job = waiting(queue, callback_url="https://x.example/")
    queue.clock.advance(59)
    assert long_waits.sweep(queue.ports).looked == 0
    queue.clock.advance(2)
    assert long_waits.sweep(queue.ports).repaired == 1
    job.refresh_from_db()
    assert (job.state, job.error_code) == (JobState.FAILED, "max_queued_exceeded")
    assert "60 s (max_queued_seconds)" in job.error_message
    assert queue.leases.has_tickets("m", [job.ticket]) == [False]
    assert queue.callbacks == [Callback.objects.get(job=job).id]


def test_the_message_names_the_limit_that_the_job_came_with(queue: QueueHarness) -> None:
    queue.server()
    ModelConfig.objects.update(max_queued_seconds=5)
    job = waiting(queue)
    queue.clock.advance(61)
    assert long_waits.sweep(queue.ports).repaired == 1
    job.refresh_from_db()
    assert job.error_message == "The job waited longer than its limit of 60 s (max_queued_seconds)."


@pytest.mark.database
def test_a_running_job_is_left_alone_and_running_time_is_no_wait(queue: QueueHarness) -> None:
    queue.server()
    job = waiting(queue)
    queue.clock.advance(50)
    lease = queue.claim()
    queue.clock.advance(600)
    assert long_waits.sweep(queue.ports).looked == 0
    end = End(
        job.id,
        lease.attempt_id,
        1,
        lease.slot,
        Ending(ServerLost("gone")),
        RetryPolicy(),
        queue.clock.now(),
    )
    assert transitions.end_attempt(end).won
    job.refresh_from_db()
    assert job.queue_deadline_at == queue.clock.now() + timedelta(seconds=10), "the job had waited for 50 s"
    queue.clock.advance(11)
    assert long_waits.sweep(queue.ports).repaired == 1
    job.refresh_from_db()
    assert job.error_code == "max_queued_exceeded"
    assert "its limit of 60 s" in job.error_message, "the run time is subtracted"


def test_a_retried_dead_letter_gets_a_new_queue_deadline(queue: QueueHarness) -> None:
    queue.server()
    ModelConfig.objects.update(max_queued_seconds=60)
    job = waiting(queue)
    queue.clock.advance(61)
    long_waits.sweep(queue.ports)
    jobs.retry_dead_letter(job.id, ports=queue.ports, by="ops")
    job.refresh_from_db()
    assert (job.state, job.queue_deadline_at) == (JobState.QUEUED, queue.clock.now() + MINUTE)


@pytest.mark.database
def test_a_dead_letter_retried_by_an_older_version_gets_a_new_queue_deadline(queue: QueueHarness) -> None:
    """The older version opens a round and keeps the queue deadline of the previous one."""
    queue.server()
    ModelConfig.objects.update(max_queued_seconds=60)
    job = waiting(queue)
    queue.clock.advance(1000)
    now = queue.clock.now()
    Job.objects.filter(id=job.id).update(round=2, place_us=int(now.timestamp() * 1_000_000))
    assert long_waits.sweep(queue.ports).repaired == 1
    job.refresh_from_db()
    assert (job.state, job.queue_deadline_at) == (JobState.QUEUED, now + MINUTE)
    queue.clock.advance(61)
    long_waits.sweep(queue.ports)
    assert Job.objects.get(id=job.id).state == JobState.FAILED


def test_a_job_of_an_older_version_has_no_queue_deadline(queue: QueueHarness) -> None:
    job = queue.job(push=False)
    queue.clock.advance(10_000_000)
    assert long_waits.sweep(queue.ports).looked == 0
    job.refresh_from_db()
    assert job.state == JobState.QUEUED


@pytest.mark.parametrize(
    ("own", "setting", "expected"),
    [
        ((None, None), 86_400.0, 86_400.0),
        ((None, None), 0.0, None),
        ((100.0, None), 86_400.0, 100.0),
        ((200_000.0, None), 86_400.0, 200_000.0),
        ((100.0, 50.0), 86_400.0, 50.0),
        ((100.0, 150.0), 0.0, 100.0),
        ((None, 150.0), 86_400.0, 150.0),
    ],
)
def test_the_lower_limit_of_model_and_tenant_applies_else_the_setting(
    queue: QueueHarness,
    settings: Any,
    own: tuple[float | None, float | None],
    setting: float,
    expected: float | None,
) -> None:
    model, tenant = own
    queue.server()
    ModelConfig.objects.update(max_queued_seconds=model)
    Tenant.objects.update(max_queued_seconds=tenant)
    queue.ports.limit_caches.clear()
    settings.DISPATCHER = replace(settings.DISPATCHER, max_queued_seconds=setting)
    assert max_queued_seconds(queue.tenant.pk, "m", queue.ports) == expected
    start = queue.clock.now()
    at = queue_deadline(queue.tenant.pk, "m", start, queue.ports)
    assert at == (None if expected is None else start + timedelta(seconds=expected))


def test_three_equal_failures_end_a_job_and_are_shown_while_it_waits(queue: QueueHarness) -> None:
    queue.server()
    job = queue.job()
    for number in range(1, 4):
        lease = queue.claim()
        end = End(
            job.id,
            lease.attempt_id,
            1,
            lease.slot,
            Ending(RunFailed(f"no weights after {number} s")),
            RetryPolicy(),
            queue.clock.now(),
        )
        assert transitions.end_attempt(end).won
        queue.release(lease)
        queue.leases.confirm_ends([lease.ref])
        job.refresh_from_db()
        assert (job.error_code, job.same_failures) == ("run_failed", number)
        if number < 3:
            assert job.state == JobState.RETRYING
            queue.clock.advance(40)
            requeued = transitions.queue_retry(job.id, queue.clock.now())
            assert requeued is not None
            queue.leases.push("m", [requeued.ticket])
    assert (job.state, job.tries) == (JobState.FAILED, 3)
    assert "3 times in a row" in job.error_message
    assert attempt_of(job).number == 3
