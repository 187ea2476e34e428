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
from tests.support.queue_world import LEASE_SECONDS, QueueWorld, attempt_of


@pytest.fixture
def lease(world: QueueWorld) -> Lease:
    """A claimed job whose start is not committed."""
    world.server()
    world.job()
    return world.claim(written=False)


def test_a_renewed_lease_is_left_alone(world: QueueWorld, lease: Lease) -> None:
    assert expired_leases.sweep(world.ports).looked == 0


def test_a_sent_attempt_is_lost_and_its_slot_quarantined(world: QueueWorld, lease: Lease) -> None:
    world.start(lease)
    assert expire(world).repaired == 1
    attempt = attempt_of(job_of(lease))
    assert (attempt.state, attempt.error_code, attempt.slot_freed) == (
        AttemptState.LOST,
        "server_lost",
        False,
    )
    assert attempt.gpu_seconds == pytest.approx(15.1, abs=0.01)
    assert (job_of(lease).state, job_of(lease).deaths) == (JobState.RETRYING, 1)
    assert QuarantinedSlot.objects.get().attempt_id == lease.attempt_id
    assert world.slot() == "quarantined"
    assert world.announced == [lease.job_id]


def test_the_third_death_is_poison(world: QueueWorld, lease: Lease) -> None:
    world.start(lease)
    Job.objects.update(deaths=2)
    expire(world)
    assert (job_of(lease).state, job_of(lease).error_code) == (JobState.FAILED, "poison")


def test_an_accepted_attempt_becomes_adoptable_and_its_job_runs_on(world: QueueWorld, lease: Lease) -> None:
    world.start(lease)
    world.accept(lease)
    assert expire(world).repaired == 1
    assert world.slot() == "adoptable"
    assert job_of(lease).state == JobState.RUNNING
    assert attempt_of(job_of(lease)).state == AttemptState.WAITING
    adopted = world.leases.claim("m", worker="w2", attempt_id="unused")
    assert adopted is not None
    assert (adopted.attempt_id, adopted.adopted, adopted.epoch) == (lease.attempt_id, True, 1)


@pytest.mark.database
def test_a_higher_epoch_in_the_database_is_written_to_the_lease(world: QueueWorld, lease: Lease) -> None:
    world.start(lease)
    world.accept(lease)
    assert transitions.take_over(lease.job_id, lease.attempt_id, 1, "died here", world.clock.now())
    expire(world)
    adopted = world.leases.claim("m", worker="w2", attempt_id="unused")
    assert adopted is not None
    assert (adopted.epoch, adopted.adopted) == (2, True)


def test_an_unwritten_start_is_written_as_lost(world: QueueWorld, lease: Lease) -> None:
    assert expire(world).repaired == 1
    attempt = attempt_of(job_of(lease))
    assert (attempt.id, attempt.state, attempt.worker) == (lease.attempt_id, AttemptState.LOST, "w1")
    assert job_of(lease).state == JobState.RETRYING
    assert QuarantinedSlot.objects.get().attempt_id == lease.attempt_id
    assert world.slot() == "quarantined"


def test_an_at_most_once_job_without_a_start_was_not_sent(world: QueueWorld) -> None:
    world.server(at_most_once=True)
    job = world.job()
    world.claim(written=False)
    assert expire(world).repaired == 1
    assert not Attempt.objects.exists()
    assert Job.objects.get().state == JobState.QUEUED
    assert world.slot() == "free"
    assert world.leases.has_tickets("m", [job.ticket]) == [True]


def test_an_at_most_once_job_fails_when_its_sent_attempt_is_lost(world: QueueWorld) -> None:
    world.server(at_most_once=True)
    world.job()
    world.claim()
    expire(world)
    assert Job.objects.get().error_code == "lost_at_most_once"


@pytest.mark.database
def test_a_start_whose_job_was_cancelled_leaves_a_quarantined_slot(world: QueueWorld, lease: Lease) -> None:
    transitions.end_waiting(lease.job_id, JobState.CANCELLED, world.clock.now(), code="cancelled", message="")
    assert expire(world).repaired == 1
    assert not Attempt.objects.exists()
    assert QuarantinedSlot.objects.get().attempt_id == lease.attempt_id
    assert world.slot() == "quarantined"


def test_an_unconfirmed_end_with_a_commit_is_settled(world: QueueWorld, lease: Lease) -> None:
    world.start(lease)
    world.release(lease)
    end(world, lease, ending=Ending(), result={"ok": True})
    assert expire(world).repaired == 1
    assert world.slot() == "free"
    assert job_of(lease).state == JobState.COMPLETED
    assert not world.leases.is_held(lease.ref)


def test_an_unconfirmed_end_without_a_commit_is_lost_and_its_slot_free(
    world: QueueWorld, lease: Lease
) -> None:
    world.start(lease)
    world.release(lease)
    assert expire(world).repaired == 1
    attempt = attempt_of(job_of(lease))
    assert (attempt.state, attempt.slot_freed) == (AttemptState.LOST, True)
    assert attempt.evidence == "its worker had released the slot"
    assert job_of(lease).state == JobState.RETRYING
    assert not QuarantinedSlot.objects.exists()
    assert world.slot() == "free"


def test_an_unconfirmed_end_without_a_start_is_lost(world: QueueWorld, lease: Lease) -> None:
    world.release(lease)
    expire(world)
    assert attempt_of(job_of(lease)).state == AttemptState.LOST
    assert world.slot() == "free"


def test_a_slot_returned_as_suspect_stays_in_quarantine(world: QueueWorld, lease: Lease) -> None:
    world.start(lease)
    world.release(lease, ReleaseMode.SUSPECT)
    expire(world)
    assert attempt_of(job_of(lease)).slot_freed is False
    assert QuarantinedSlot.objects.get().attempt_id == lease.attempt_id
    assert world.slot() == "quarantined"


def test_an_end_is_resolved_before_the_next_start_on_its_slot(world: QueueWorld) -> None:
    world.server()
    first_job, second_job = world.job(), world.job()
    first = world.claim()
    second = world.leases.release(first.ref, ReleaseMode.ENDED, worker="w1", next_attempt_id="next")
    assert second is not None
    assert expire(world).repaired == 2
    assert attempt_of(first_job).state == AttemptState.LOST
    assert attempt_of(second_job).state == AttemptState.LOST
    assert QuarantinedSlot.objects.get().attempt_id == "next"


def test_an_ended_attempt_whose_slot_was_proven_free_frees_it(world: QueueWorld, lease: Lease) -> None:
    world.start(lease)
    end(world, lease, ending=Ending(), result=1)
    assert expire(world).repaired == 1
    assert world.slot() == "free"


@pytest.mark.database
def test_an_ended_attempt_without_that_proof_leaves_it_quarantined(world: QueueWorld, lease: Lease) -> None:
    world.start(lease)
    end(world, lease, ending=Ending(RunTimedOut(), suspect=True))
    expire(world)
    assert world.slot() == "quarantined"


@pytest.mark.database
def test_a_later_proof_frees_the_slot(world: QueueWorld, lease: Lease) -> None:
    world.start(lease)
    end(world, lease, ending=Ending(RunTimedOut(), suspect=True))
    QuarantinedSlot.objects.update(freed_at=world.clock.now())
    expire(world)
    assert world.slot() == "free"


def test_a_queued_job_gets_its_ticket_back(world: QueueWorld, lease: Lease) -> None:
    """The worker committed that the attempt was refused, and died before it wrote to Redis."""
    world.start(lease)
    end(world, lease, ending=Ending(GpuBusy()))
    expire(world)
    assert job_of(lease).state == JobState.QUEUED
    assert world.leases.has_tickets("m", [job_of(lease).ticket]) == [True]
    assert world.slot() == "free"


def test_an_error_on_one_lease_does_not_stop_the_others(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.server(slots=2)
    world.job()
    world.job()
    bad, good = world.claim(), world.claim()
    real = transitions.end_attempt

    def refuse_one(of: End) -> Any:
        if of.attempt_id == bad.attempt_id:
            raise ValueError("cannot be written")
        return real(of)

    monkeypatch.setattr(transitions, "end_attempt", refuse_one)
    world.clock.advance(LEASE_SECONDS + 0.1)
    count = expired_leases.sweep(world.ports)
    assert (count.looked, count.repaired, count.failed) == (2, 1, 1)
    assert job_of(good).state == JobState.RETRYING
    assert job_of(bad).state == JobState.RUNNING


def test_two_sweeps_at_once_end_an_attempt_once(world: QueueWorld, lease: Lease) -> None:
    world.start(lease)
    world.clock.advance(LEASE_SECONDS + 0.1)
    expired = world.leases.expired()
    for _ in range(2):
        with transaction.atomic():
            expired_leases._resolve(expired[0], world.leases, world.ports)
    assert (job_of(lease).deaths, job_of(lease).tries) == (1, 1)
    assert QuarantinedSlot.objects.count() == 1


def test_without_redis_a_note_says_so(world: QueueWorld) -> None:
    world.server()
    world.redis_is_gone = True
    count = expired_leases.sweep(world.ports)
    assert count.looked == 0
    assert any("Redis does not answer" in note for note in count.notes)
