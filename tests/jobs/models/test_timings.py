"""Durations of a job."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gpus.errors import RunFailed
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.domain.states import JobState
from jobs.models import Attempt, Job, Timings
from tests.support.factories import make_job, make_running
from tests.support.fakes import START

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def run(job: Job, begin: float, end: float, error: RunFailed | None = None) -> None:
    attempt_id = make_running(job, at=at(begin))
    gpu_seconds = end - begin
    ending = transitions.End(
        job.id, attempt_id, 1, "gpu-1/0", Ending(error=error), RetryPolicy(), at(end), gpu_seconds=gpu_seconds
    )
    assert transitions.end_attempt(ending).won


def timings(job: Job, now: float, *, newest: int = 50) -> Timings:
    """As of `now`, from the last `newest` attempts."""
    job = Job.objects.get(id=job.id)
    attempts = list(Attempt.objects.filter(job=job).order_by("-number")[:newest])[::-1]
    return job.timings(attempts, at(now))


def test_a_waiting_job_has_waited_and_not_run() -> None:
    job = make_job()
    assert timings(job, 7) == Timings(waited=7, ran=None, gpu=0, total=7)
    transitions.end_waiting(job.id, JobState.CANCELLED, at(9), code="cancelled", message="")
    assert timings(job, 100) == Timings(waited=9, ran=None, gpu=0, total=9)


def test_a_scheduled_job_waits_from_its_start_time() -> None:
    job = make_job()
    Job.objects.filter(id=job.id).update(run_at=at(60))
    assert timings(job, 7).waited == 0
    assert timings(job, 65) == Timings(waited=5, ran=None, gpu=0, total=65)


def test_a_running_attempt_counts_until_now() -> None:
    job = make_job()
    make_running(job, at=at(2))
    assert timings(job, 12) == Timings(waited=2, ran=10, gpu=10, total=12)


def test_all_attempts_count_as_gpu_time_and_the_last_one_as_run_time() -> None:
    job = make_job()
    run(job, 2, 7, RunFailed("boom"))
    transitions.queue_retry(job.id, at(10))
    assert timings(job, 12) == Timings(waited=2, ran=5, gpu=5, total=12)
    run(job, 20, 50)
    assert timings(job, 1000) == Timings(waited=2, ran=30, gpu=35, total=50)


def test_missing_attempts_are_queried_and_known_ones_are_not() -> None:
    job = make_job()
    run(job, 2, 7, RunFailed("boom"))
    transitions.queue_retry(job.id, at(10))
    run(job, 20, 50)
    job = Job.objects.get(id=job.id)
    known = list(Attempt.objects.filter(job=job).order_by("number"))
    with CaptureQueriesContext(connection) as asked:
        assert job.timings(known, at(99)) == job.timings(known, at(50))
    assert len(asked) == 0
    assert job.timings(known[:1], at(50)) == job.timings(known, at(50))
