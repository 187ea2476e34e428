"""Cancel, retry, dismiss: with Redis away, the database alone decides."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gpus.errors import BadInput
from jobs import transitions
from jobs.errors import NotCancellable, NotDeadLetter
from jobs.models import Job
from jobs.retry import Ending, RetryPolicy
from jobs.services.operate import (
    CancelOutcome,
    Retried,
    cancel_job,
    dismiss_dead_letter,
    retry_dead_letter,
    retry_dead_letters,
)
from jobs.states import JobState
from jobs.transitions import End
from tests.builders import START, Told, make_job, make_ports, make_running

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def make_dead_letter() -> Job:
    job = make_job()
    attempt_id = make_running(job)
    transitions.end_attempt(
        End(job.id, attempt_id, 1, "gpu-1/0", Ending(BadInput("no")), RetryPolicy(), START)
    )
    job.refresh_from_db()
    return job


def test_a_waiting_job_is_cancelled_at_once_even_without_redis():
    job, told = make_job(callback_url="http://example.com/h"), Told()
    assert cancel_job(job.id, ports=make_ports(told=told)) is CancelOutcome.CANCELLED
    job.refresh_from_db()
    assert (job.state, job.error_code) == (JobState.CANCELLED, "cancelled")
    assert told.announced == [job.id]
    assert len(told.callbacks) == 1


def test_cancelling_twice_answers_the_same():
    job, ports = make_job(), make_ports()
    cancel_job(job.id, ports=ports)
    assert cancel_job(job.id, ports=ports) is CancelOutcome.CANCELLED


def test_a_running_job_is_asked_to_stop():
    job = make_job()
    make_running(job)
    assert cancel_job(job.id, ports=make_ports()) is CancelOutcome.REQUESTED
    job.refresh_from_db()
    assert job.state == JobState.RUNNING
    assert job.cancel_requested_at is not None


def test_a_finished_job_is_not_cancellable():
    with pytest.raises(NotCancellable):
        cancel_job(make_dead_letter().id, ports=make_ports())


def test_a_dead_letter_is_retried_in_a_new_round():
    job = make_dead_letter()
    retry_dead_letter(job.id, ports=make_ports())
    job.refresh_from_db()
    assert (job.state, job.round) == (JobState.QUEUED, 2)


def test_only_dead_letters_are_retried():
    with pytest.raises(NotDeadLetter):
        retry_dead_letter(make_job().id, ports=make_ports())


def test_many_are_retried_each_once():
    jobs, told = [make_dead_letter() for _ in range(3)], Told()
    assert retry_dead_letters(Job.objects.all(), ports=make_ports(told=told)) == Retried(3, 0)
    assert retry_dead_letters(Job.objects.all(), ports=make_ports(told=told)) == Retried(0, 0)
    assert {Job.objects.get(id=job.id).round for job in jobs} == {2}
    assert sorted(told.announced) == sorted(job.id for job in jobs)


def test_a_call_retries_a_bounded_number_and_says_what_remains():
    for _ in range(5):
        make_dead_letter()
    ports = make_ports()
    assert retry_dead_letters(Job.objects.all(), ports=ports, at_most=3) == Retried(3, 2)
    assert retry_dead_letters(Job.objects.all(), ports=ports, at_most=3) == Retried(2, 0)


def test_what_failed_longest_ago_is_retried_first():
    """A job that fails again at once goes to the end, whatever its id."""
    again, other = make_dead_letter(), make_dead_letter()
    Job.objects.filter(id=again.id).update(finished_at=START + timedelta(seconds=9))
    assert retry_dead_letters(Job.objects.all(), ports=make_ports(), at_most=1) == Retried(1, 1)
    assert Job.objects.get(id=other.id).state == JobState.QUEUED


def test_a_dismissed_dead_letter_is_no_dead_letter_any_more():
    job = make_dead_letter()
    dismiss_dead_letter(job.id, ports=make_ports())
    with pytest.raises(NotDeadLetter):
        retry_dead_letter(job.id, ports=make_ports())
    with pytest.raises(NotDeadLetter):
        dismiss_dead_letter(job.id, ports=make_ports())
