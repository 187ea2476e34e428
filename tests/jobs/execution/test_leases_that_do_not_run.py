"""Leases under which no job runs: stale tickets, slots with another live attempt, attempts that ended before
adoption."""

from __future__ import annotations

from typing import Any, cast

import pytest
from django.db import OperationalError, transaction

from foundation.ids import new_id
from gpus.errors import ServerLost
from gpus.leasing.values import ExpiredLease
from gpus.models import QuarantinedSlot
from gpus.protocol import Lease, LeaseRef, ReleaseMode
from gpus.runners.base import Accepted
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.domain.states import JobState
from jobs.models import Attempt, Job
from jobs.sweeps import expired_leases
from jobs.transitions import End, Start, StartOutcome
from tests.jobs.execution.by_hand import OLD, by_hand
from tests.support.factories import make_job, make_running
from tests.support.worker_harness import state

pytestmark = pytest.mark.django_db(transaction=True)


def releases(hands) -> list[tuple[str, ReleaseMode, float | None]]:
    return [
        (given[0].job_id, given[1], named.get("gpu_seconds"))
        for given, named in hands.leases.named("release")
    ]


# -- a stale ticket -------------------------------------------------------------------------------------


def cancelled(job):
    Job.objects.filter(id=job.id).update(state=JobState.CANCELLED, finished_at=job.created_at)


def retrying(job):
    Job.objects.filter(id=job.id).update(state=JobState.RETRYING, due_at=job.created_at)


def removed(job):
    job.delete()


@pytest.mark.parametrize("moved", [cancelled, retrying, removed])
def test_a_stale_ticket_is_given_back_and_the_next_one_runs(harness, moved):
    hands = by_hand(harness)
    stale, fresh = hands.submit(), hands.submit()
    stale_id = stale.id
    moved(stale)
    hands.writer.at_once = False  # the look at the row is what keeps it from the GPU
    hands.gpu.on_start = lambda run: hands.writer.commit()
    hands.worker.work("m")
    hands.writer.commit()
    assert hands.gpu.sent == [fresh.id]
    assert state(fresh) == JobState.COMPLETED
    assert releases(hands)[0] == (stale_id, ReleaseMode.FREE, 0.0)
    assert Attempt.objects.filter(job_id=stale_id).count() == 0
    assert (hands.slot(), hands.waiting(), hands.worker.completion.keeper.held()) == ("free", 0, 0)


# -- a slot that is taken in the database ---------------------------------------------------------------


def test_a_slot_with_another_live_attempt_is_quarantined_and_the_job_stays_queued(harness):
    hands = by_hand(harness, generation_age=0.0)
    other = make_job("m", at=hands.clock.now())
    make_running(other, at=hands.clock.now())  # Redis has no lease of it
    job = hands.submit()
    hands.writer.at_once = False
    hands.worker.work("m")
    assert hands.gpu.sent == []
    assert hands.slot() == "quarantined", "before its row is"
    hands.writer.commit()
    row = QuarantinedSlot.objects.get(server="gpu-1", slot=0, freed_at=None)
    assert (row.job_id, row.reason) == (job.id, f"start refused: {StartOutcome.SLOT_TAKEN}")
    assert hands.slot() == "quarantined"
    job.refresh_from_db()
    assert (job.state, job.tries, job.attempts_made) == (JobState.QUEUED, 0, 0)
    assert hands.waiting() == 1, "the lease took its ticket"
    assert hands.worker.completion.keeper.held() == 0


def test_a_refused_run_that_may_still_be_busy_quarantines_its_slot(harness):
    """The client cancelled before the start was committed, and the server was lost meanwhile."""
    hands = by_hand(harness, ServerLost(), generation_age=OLD)
    job = hands.submit()
    hands.writer.at_once = False

    def lost(run):
        cancelled(job)
        hands.writer.commit()

    hands.gpu.on_start = lost
    hands.worker.work("m")
    hands.writer.commit()
    assert hands.slot() == "quarantined"
    assert QuarantinedSlot.objects.filter(server="gpu-1", slot=0, freed_at=None).exists()
    assert hands.waiting() == 0, "a cancelled job gets no ticket"


def test_a_quarantine_that_the_database_refuses_is_left_to_a_sweep(harness):
    """The lease must not be renewed for as long as the worker lives: its job would wait as long."""
    hands = by_hand(harness, ServerLost(), generation_age=OLD)
    job = hands.submit()
    hands.writer.at_once = False
    hands.gpu.on_start = lambda run: hands.writer.refuse(OperationalError("disk I/O error"))
    hands.worker.work("m")
    hands.writer.refuse(OperationalError("disk I/O error"))
    assert (hands.worker.completion.keeper.held(), hands.slot(), hands.waiting()) == (0, "quarantined", 0)

    [view] = hands.leases.real.slots("gpu-1")
    ref = LeaseRef(view.slot, job.id, view.attempt_id, 1)
    end = ExpiredLease("m", ref, "m", str(job.tenant_id), True, "w", 5.0)
    hands.leases.instead["expired"] = lambda real, limit: [end]
    expired_leases.sweep(hands.worker.ports)
    assert QuarantinedSlot.objects.get(freed_at=None).attempt_id == ref.attempt_id
    assert (state(job), hands.slot()) == (JobState.RETRYING, "quarantined")
    assert not hands.leases.real.has_tickets("m", [job.ticket])[0], "it is not held any more"


def test_a_run_whose_start_is_refused_meanwhile_is_stopped_at_its_gpu(harness):
    hands = by_hand(harness, Accepted("r1"))
    job = hands.submit()
    hands.writer.at_once = False
    hands.gpu.on_start = lambda run: cancelled(job)
    hands.worker.work("m")  # its first wait commits
    hands.writer.commit()
    assert (hands.gpu.cancelled, hands.gpu.polled) == ([job.id], [])
    assert (state(job), hands.slot()) == (JobState.CANCELLED, "free")
    assert (Attempt.objects.count(), hands.worker.completion.keeper.held()) == (0, 0)


# -- adoption -------------------------------------------------------------------------------------------


def handed_over(hands, *, is_waiting: bool = True) -> tuple[Job, str]:
    """An adoptable lease with its live attempt, as another worker left it."""
    job, attempt_id = hands.submit(), new_id()
    lease = hands.leases.real.claim("m", worker="gone", attempt_id=attempt_id)
    with transaction.atomic():
        start = Start(job.id, attempt_id, lease.slot, "m", "gone", hands.clock.now())
        assert transitions.start_attempt(start) is StartOutcome.STARTED
        if is_waiting:
            assert transitions.note_remote_id(job.id, attempt_id, 1, "r1", hands.clock.now())
    hands.leases.real.release(lease.ref, ReleaseMode.ADOPT, worker="gone")
    assert hands.slot() == "adoptable"
    return job, attempt_id


def end(hands, job, attempt_id, ending):
    with transaction.atomic():
        ended = transitions.end_attempt(
            End(job.id, attempt_id, 1, "gpu-1/0", ending, RetryPolicy(), hands.clock.now())
        )
    assert ended.won


def test_a_waiting_attempt_is_adopted_and_polled(harness):
    hands = by_hand(harness)
    job, _ = handed_over(hands)
    hands.worker.work("m")
    assert (hands.gpu.sent, hands.gpu.polled) == ([], ["r1"])
    assert (state(job), hands.slot()) == (JobState.COMPLETED, "free")


def test_a_worker_does_not_adopt_its_own_run(harness):
    """The worker was suspended until its lease had expired, and will end the run under the old epoch."""
    hands = by_hand(harness)
    job, attempt_id = handed_over(hands)
    lease = Lease("m", "gpu-1/0", job.id, attempt_id, 1, "m", str(job.tenant_id), 5, 0, 0, 0.0)
    with hands.worker.runs.holding(lease, cast(Any, None)):
        hands.worker.work("m")
    assert (hands.gpu.polled, Attempt.objects.get().epoch, hands.slot()) == ([], 1, "adoptable")


def test_an_attempt_that_ended_cleanly_is_not_adopted_and_its_slot_is_free(harness):
    hands = by_hand(harness)
    job, attempt_id = handed_over(hands)
    end(hands, job, attempt_id, Ending())
    following = hands.submit()
    hands.worker.work("m")
    assert (hands.gpu.sent, hands.gpu.polled) == ([following.id], [])
    assert releases(hands)[0] == (job.id, ReleaseMode.FREE, 0.0)
    assert Attempt.objects.get(id=attempt_id).epoch == 1


def uncertain(hands, job, attempt_id):
    end(hands, job, attempt_id, Ending(ServerLost(), suspect=True))


def gone(hands, job, attempt_id):
    Job.objects.filter(id=job.id).update(live_attempt=None, state=JobState.QUEUED)
    Attempt.objects.filter(id=attempt_id).delete()


def unaccepted(hands, job, attempt_id):
    """Still SENT: there is no id to poll."""


@pytest.mark.parametrize("moved", [uncertain, gone, unaccepted])
def test_an_attempt_that_no_worker_can_poll_quarantines_its_slot(harness, moved):
    hands = by_hand(harness)
    job, attempt_id = handed_over(hands, is_waiting=moved is not unaccepted)
    moved(hands, job, attempt_id)
    hands.submit()
    hands.worker.work("m")
    assert (hands.gpu.sent, hands.gpu.polled) == ([], [])
    assert releases(hands) == [(job.id, ReleaseMode.SUSPECT, 0.0)]
    assert (hands.slot(), hands.waiting()) == ("quarantined", 1)
