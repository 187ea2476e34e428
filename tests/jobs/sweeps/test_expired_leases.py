"""The sweep `expired_leases`: how a dead worker's lease is resolved, by the state of its attempt's row."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from gpus.errors import GpuBusy, RunTimedOut
from gpus.models import QuarantinedSlot
from gpus.protocol import Lease, ReleaseMode
from jobs import transitions
from jobs.domain.retry import Ending
from jobs.domain.states import AttemptState, JobState
from jobs.models import Attempt, Job
from jobs.sweeps import expired_leases
from jobs.transitions import End
from tests.support.expiries import end, expire, job_of
from tests.support.queue_harness import LEASE_SECONDS, QueueHarness, attempt_of


@pytest.fixture
def lease(queue: QueueHarness) -> Lease:
    """A claimed job whose start is not committed."""
    queue.server()
    queue.job()
    return queue.claim(written=False)


def test_a_renewed_lease_is_left_alone(queue: QueueHarness, lease: Lease) -> None:
    assert expired_leases.sweep(queue.ports).looked == 0


def test_a_sent_attempt_is_lost_and_its_slot_quarantined(queue: QueueHarness, lease: Lease) -> None:
    queue.start(lease)
    assert expire(queue).repaired == 1
    attempt = attempt_of(job_of(lease))
    assert (attempt.state, attempt.error_code, attempt.slot_freed) == (
        AttemptState.LOST,
        "server_lost",
        False,
    )
    assert attempt.gpu_seconds == pytest.approx(15.1, abs=0.01)
    assert (job_of(lease).state, job_of(lease).deaths) == (JobState.RETRYING, 1)
    assert QuarantinedSlot.objects.get().attempt_id == lease.attempt_id
    assert queue.slot() == "quarantined"
    assert queue.announced == [lease.job_id]


def test_the_third_death_is_poison(queue: QueueHarness, lease: Lease) -> None:
    queue.start(lease)
    Job.objects.update(deaths=2)
    expire(queue)
    assert (job_of(lease).state, job_of(lease).error_code) == (JobState.FAILED, "poison")


def test_an_accepted_attempt_becomes_adoptable_and_its_job_runs_on(queue: QueueHarness, lease: Lease) -> None:
    queue.start(lease)
    queue.accept(lease)
    assert expire(queue).repaired == 1
    assert queue.slot() == "adoptable"
    assert job_of(lease).state == JobState.RUNNING
    assert attempt_of(job_of(lease)).state == AttemptState.WAITING
    adopted = queue.leases.claim("m", worker="w2", attempt_id="unused")
    assert adopted is not None
    assert (adopted.attempt_id, adopted.adopted, adopted.epoch) == (lease.attempt_id, True, 1)


@pytest.mark.database
def test_a_higher_epoch_in_the_database_is_written_to_the_lease(queue: QueueHarness, lease: Lease) -> None:
    queue.start(lease)
    queue.accept(lease)
    assert transitions.take_over(lease.job_id, lease.attempt_id, 1, "died here", queue.clock.now())
    expire(queue)
    adopted = queue.leases.claim("m", worker="w2", attempt_id="unused")
    assert adopted is not None
    assert (adopted.epoch, adopted.adopted) == (2, True)


def test_an_unwritten_start_is_written_as_lost(queue: QueueHarness, lease: Lease) -> None:
    assert expire(queue).repaired == 1
    attempt = attempt_of(job_of(lease))
    assert (attempt.id, attempt.state, attempt.worker) == (lease.attempt_id, AttemptState.LOST, "w1")
    assert job_of(lease).state == JobState.RETRYING
    assert QuarantinedSlot.objects.get().attempt_id == lease.attempt_id
    assert queue.slot() == "quarantined"


def test_an_at_most_once_job_without_a_start_was_not_sent(queue: QueueHarness) -> None:
    queue.server(at_most_once=True)
    job = queue.job()
    queue.claim(written=False)
    assert expire(queue).repaired == 1
    assert not Attempt.objects.exists()
    assert Job.objects.get().state == JobState.QUEUED
    assert queue.slot() == "free"
    assert queue.leases.has_tickets("m", [job.ticket]) == [True]


def test_an_at_most_once_job_fails_when_its_sent_attempt_is_lost(queue: QueueHarness) -> None:
    queue.server(at_most_once=True)
    queue.job()
    queue.claim()
    expire(queue)
    assert Job.objects.get().error_code == "lost_at_most_once"


@pytest.mark.database
def test_a_start_whose_job_was_cancelled_leaves_a_quarantined_slot(queue: QueueHarness, lease: Lease) -> None:
    transitions.end_waiting(lease.job_id, JobState.CANCELLED, queue.clock.now(), code="cancelled", message="")
    assert expire(queue).repaired == 1
    assert not Attempt.objects.exists()
    assert QuarantinedSlot.objects.get().attempt_id == lease.attempt_id
    assert queue.slot() == "quarantined"


def test_an_unconfirmed_end_with_a_commit_is_settled(queue: QueueHarness, lease: Lease) -> None:
    queue.start(lease)
    queue.release(lease)
    end(queue, lease, ending=Ending(), result={"ok": True})
    assert expire(queue).repaired == 1
    assert queue.slot() == "free"
    assert job_of(lease).state == JobState.COMPLETED
    assert not queue.leases.is_held(lease.ref)


def test_an_unconfirmed_end_without_a_commit_is_lost_and_its_slot_free(
    queue: QueueHarness, lease: Lease
) -> None:
    queue.start(lease)
    queue.release(lease)
    assert expire(queue).repaired == 1
    attempt = attempt_of(job_of(lease))
    assert (attempt.state, attempt.slot_freed) == (AttemptState.LOST, True)
    assert attempt.evidence == "its worker had released the slot"
    assert job_of(lease).state == JobState.RETRYING
    assert not QuarantinedSlot.objects.exists()
    assert queue.slot() == "free"


def test_an_unconfirmed_end_without_a_start_is_lost(queue: QueueHarness, lease: Lease) -> None:
    queue.release(lease)
    expire(queue)
    assert attempt_of(job_of(lease)).state == AttemptState.LOST
    assert queue.slot() == "free"


def test_a_slot_returned_as_suspect_stays_in_quarantine(queue: QueueHarness, lease: Lease) -> None:
    queue.start(lease)
    queue.release(lease, ReleaseMode.SUSPECT)
    expire(queue)
    assert attempt_of(job_of(lease)).slot_freed is False
    assert QuarantinedSlot.objects.get().attempt_id == lease.attempt_id
    assert queue.slot() == "quarantined"


def test_an_end_is_resolved_before_the_next_start_on_its_slot(queue: QueueHarness) -> None:
    queue.server()
    first_job, second_job = queue.job(), queue.job()
    first = queue.claim()
    second = queue.leases.release(first.ref, ReleaseMode.ENDED, worker="w1", next_attempt_id="next")
    assert second is not None
    assert expire(queue).repaired == 2
    assert attempt_of(first_job).state == AttemptState.LOST
    assert attempt_of(second_job).state == AttemptState.LOST
    assert QuarantinedSlot.objects.get().attempt_id == "next"


def test_an_ended_attempt_whose_slot_was_proven_free_frees_it(queue: QueueHarness, lease: Lease) -> None:
    queue.start(lease)
    end(queue, lease, ending=Ending(), result=1)
    assert expire(queue).repaired == 1
    assert queue.slot() == "free"


@pytest.mark.database
def test_an_ended_attempt_without_that_proof_leaves_it_quarantined(queue: QueueHarness, lease: Lease) -> None:
    queue.start(lease)
    end(queue, lease, ending=Ending(RunTimedOut(), suspect=True))
    expire(queue)
    assert queue.slot() == "quarantined"


@pytest.mark.database
def test_a_later_proof_frees_the_slot(queue: QueueHarness, lease: Lease) -> None:
    queue.start(lease)
    end(queue, lease, ending=Ending(RunTimedOut(), suspect=True))
    QuarantinedSlot.objects.update(freed_at=queue.clock.now())
    expire(queue)
    assert queue.slot() == "free"


def test_a_queued_job_gets_its_ticket_back(queue: QueueHarness, lease: Lease) -> None:
    """The worker committed that the attempt was refused, and died before it wrote to Redis."""
    queue.start(lease)
    end(queue, lease, ending=Ending(GpuBusy()))
    expire(queue)
    assert job_of(lease).state == JobState.QUEUED
    assert queue.leases.has_tickets("m", [job_of(lease).ticket]) == [True]
    assert queue.slot() == "free"


def test_an_error_on_one_lease_does_not_stop_the_others(
    queue: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.server(slots=2)
    queue.job()
    queue.job()
    bad, good = queue.claim(), queue.claim()
    real = transitions.end_attempt

    def refuse_one(of: End) -> Any:
        if of.attempt_id == bad.attempt_id:
            raise ValueError("cannot be written")
        return real(of)

    monkeypatch.setattr(transitions, "end_attempt", refuse_one)
    queue.clock.advance(LEASE_SECONDS + 0.1)
    count = expired_leases.sweep(queue.ports)
    assert (count.looked, count.repaired, count.failed) == (2, 1, 1)
    assert job_of(good).state == JobState.RETRYING
    assert job_of(bad).state == JobState.RUNNING


def test_two_sweeps_at_once_end_an_attempt_once(queue: QueueHarness, lease: Lease) -> None:
    queue.start(lease)
    queue.clock.advance(LEASE_SECONDS + 0.1)
    expired = queue.leases.expired()
    for _ in range(2):
        with transaction.atomic():
            expired_leases._resolve(expired[0], queue.leases, queue.ports)
    assert (job_of(lease).deaths, job_of(lease).tries) == (1, 1)
    assert QuarantinedSlot.objects.count() == 1


def test_without_redis_a_note_says_so(queue: QueueHarness) -> None:
    queue.server()
    queue.redis_is_gone = True
    count = expired_leases.sweep(queue.ports)
    assert count.looked == 0
    assert any("Redis does not answer" in note for note in count.notes)
