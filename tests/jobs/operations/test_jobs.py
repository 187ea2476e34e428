"""Cancel, retry, dismiss: with Redis away, the database alone decides."""

from __future__ import annotations

import pytest

from gpus.errors import BadInput, RunCancelled, ServerLost
from jobs import transitions
from jobs.domain.errors import NotCancellable, NotDeadLetter
from jobs.domain.retry import Ending, RetryPolicy
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.operations.jobs import CancelOutcome, cancel_job, dismiss_dead_letter, retry_dead_letter
from jobs.transitions import End
from tests.support.factories import make_job, make_running
from tests.support.fakes import START, PortCalls, make_ports

pytestmark = pytest.mark.django_db


def make_dead_letter() -> Job:
    job = make_job()
    attempt_id = make_running(job)
    transitions.end_attempt(
        End(job.id, attempt_id, 1, "gpu-1/0", Ending(BadInput("no")), RetryPolicy(), START)
    )
    job.refresh_from_db()
    return job


def test_a_waiting_job_is_cancelled_at_once_even_without_redis():
    job, calls = make_job(callback_url="http://example.com/h"), PortCalls()
    assert cancel_job(job.id, ports=make_ports(calls=calls)) is CancelOutcome.CANCELLED
    job.refresh_from_db()
    assert (job.state, job.error_code) == (JobState.CANCELLED, "cancelled")
    assert calls.announced == [job.id]
    assert len(calls.callbacks) == 1


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


class HeldLeases:
    """A worker has the job's ticket, and its attempt ends while the lease layer is asked."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def remove(self, *_: object) -> bool:
        return False

    def has_tickets(self, *_: object) -> list[bool]:
        lost = Ending(ServerLost("gone"))
        attempt_id = make_running(self._job)
        transitions.end_attempt(End(self._job.id, attempt_id, 1, "gpu-1/0", lost, RetryPolicy(), START))
        return [True]


def test_a_job_whose_attempt_ends_meanwhile_is_cancelled_in_its_pause():
    job = make_job()
    assert cancel_job(job.id, ports=make_ports(HeldLeases(job))) is CancelOutcome.CANCELLED
    job.refresh_from_db()
    assert (job.state, job.due_at) == (JobState.CANCELLED, None)


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


def test_a_dismissed_dead_letter_is_no_dead_letter_any_more():
    job = make_dead_letter()
    dismiss_dead_letter(job.id, ports=make_ports())
    with pytest.raises(NotDeadLetter):
        retry_dead_letter(job.id, ports=make_ports())
    with pytest.raises(NotDeadLetter):
        dismiss_dead_letter(job.id, ports=make_ports())


@pytest.mark.parametrize(("by", "code"), [(None, "cancelled"), ("ops", "cancelled_by_operator")])
def test_the_cancel_of_a_waiting_job_names_operator_or_tenant(by: str | None, code: str):
    job = make_job()
    cancel_job(job.id, ports=make_ports(), by=by)
    job.refresh_from_db()
    assert (job.state, job.error_code) == (JobState.CANCELLED, code)


@pytest.mark.parametrize(("by", "code"), [(None, "cancelled"), ("ops", "cancelled_by_operator")])
def test_the_first_cancel_request_of_a_running_job_decides_whose_it_is(by: str | None, code: str):
    job = make_job()
    attempt_id = make_running(job)
    cancel_job(job.id, ports=make_ports(), by=by)
    cancel_job(job.id, ports=make_ports(), by=None if by else "ops")
    ending = Ending(RunCancelled())
    transitions.end_attempt(End(job.id, attempt_id, 1, "gpu-1/0", ending, RetryPolicy(), START))
    job.refresh_from_db()
    assert (job.state, job.error_code) == (JobState.CANCELLED, code)


def test_a_cancel_after_the_slots_proof_names_operator_or_tenant():
    job = make_job()
    attempt_id = make_running(job)
    cancel_job(job.id, ports=make_ports(), by="ops")
    ending = Ending(ServerLost("gone"), suspect=True)
    transitions.end_attempt(End(job.id, attempt_id, 1, "gpu-1/0", ending, RetryPolicy(), START))
    transitions.finish_cancelling(job.id, START, evidence="it restarted")
    job.refresh_from_db()
    assert (job.state, job.error_code) == (JobState.CANCELLED, "cancelled_by_operator")
    assert job.error_message == "Cancelled by an operator."
