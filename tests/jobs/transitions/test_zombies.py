"""Writes of workers that do not hold the attempt any more, or never did: each check alone refuses them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from foundation.ids import new_id
from gpus.errors import ServerFailed, ServerLost
from gpus.models import QuarantinedSlot
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.domain.states import LIVE_ATTEMPT_STATES, AttemptState
from jobs.models import Attempt, Callback, Event, Job
from jobs.transitions import End
from tests.support.factories import make_job, make_model, make_running, make_server
from tests.support.fakes import START

pytestmark = [pytest.mark.django_db, pytest.mark.database]

LATER = START + timedelta(seconds=5)


def end(job: Job, attempt_id: str, ending: Ending | None = None, *, epoch: int = 1) -> End:
    return End(job.id, attempt_id, epoch, "gpu-1/0", ending or Ending(), RetryPolicy(), LATER, result="z")


def rows(job: Job) -> tuple[object, ...]:
    """All that a write about this job could have moved."""
    return (
        Job.objects.filter(id=job.id).values().get(),
        list(Attempt.objects.filter(job=job).order_by("id").values()),
        Event.objects.filter(job=job).count(),
        Callback.objects.filter(job=job).count(),
        QuarantinedSlot.objects.count(),
    )


# -- the remote id --------------------------------------------------------------------------------------


@pytest.mark.parametrize("remote_id", ["r1", "r2"])
def test_an_id_of_an_old_epoch_is_not_noted_again(remote_id):
    """Its former holder asks once more after the take-over: even its own id is not its business now."""
    job = make_job()
    attempt_id = make_running(job, remote_id="r1")
    assert transitions.take_over(job.id, attempt_id, 1, "other", START)
    before = rows(job)
    assert not transitions.note_remote_id(job.id, attempt_id, 1, remote_id, LATER)
    assert rows(job) == before


@pytest.mark.parametrize("epoch", [1, 3])
def test_an_id_of_another_epoch_does_not_make_an_attempt_adoptable(epoch):
    job = make_job()
    attempt_id = make_running(job)
    Attempt.objects.filter(id=attempt_id).update(epoch=2)
    before = rows(job)
    assert not transitions.note_remote_id(job.id, attempt_id, epoch, "r1", LATER)
    assert rows(job) == before
    assert transitions.note_remote_id(job.id, attempt_id, 2, "r1", LATER)


def test_an_id_of_an_attempt_that_ended_is_not_noted():
    job = make_job()
    attempt_id = make_running(job)
    assert transitions.end_attempt(end(job, attempt_id)).won
    before = rows(job)
    assert not transitions.note_remote_id(job.id, attempt_id, 1, "r1", LATER)
    assert rows(job) == before


def test_an_id_of_an_attempt_that_was_never_started_is_not_noted():
    job = make_job()
    before = rows(job)
    assert not transitions.note_remote_id(job.id, new_id(), 1, "r1", LATER)
    assert rows(job) == before


# -- the end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(set(AttemptState) - LIVE_ATTEMPT_STATES))
def test_an_attempt_that_ended_does_not_end_again(state):
    """Also where the job's row still names it: one end is all that an attempt has."""
    make_server(model=make_model())
    job = make_job(callback_url="http://example.com/hook")
    attempt_id = make_running(job)
    Attempt.objects.filter(id=attempt_id).update(state=state, finished_at=START)
    before = rows(job)
    for ending in (Ending(), Ending(ServerFailed()), Ending(ServerLost(), suspect=True)):
        assert not transitions.end_attempt(end(job, attempt_id, ending)).won
    assert rows(job) == before


def test_an_attempt_that_its_job_does_not_name_does_not_end_it():
    """The job runs under another attempt, so its own row is all that is left of this one."""
    job = make_job(callback_url="http://example.com/hook")
    zombie = make_running(job)
    Job.objects.filter(id=job.id).update(live_attempt=new_id())
    before = rows(job)
    assert not transitions.end_attempt(end(job, zombie)).won
    assert rows(job) == before


@pytest.mark.parametrize("epoch", [1, 3])
def test_an_end_of_another_epoch_changes_nothing(epoch):
    job = make_job(callback_url="http://example.com/hook")
    attempt_id = make_running(job, remote_id="r1")
    assert transitions.take_over(job.id, attempt_id, 1, "other", START)
    before = rows(job)
    assert not transitions.end_attempt(end(job, attempt_id, epoch=epoch)).won
    assert rows(job) == before
