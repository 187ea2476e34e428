"""The sweep `orphans`: running jobs without a worker."""

from __future__ import annotations

from datetime import timedelta

import pytest

from foundation.database import statements
from foundation.ids import new_id
from gpus.models import ModelConfig, QuarantinedSlot
from gpus.protocol import Lease, ReleaseMode
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.domain.states import AttemptState, JobState
from jobs.models import Attempt, Job
from jobs.sweeps import orphans
from jobs.sweeps.base import SweepCount
from jobs.transitions import End
from tests.support.by_process import run_sweep
from tests.support.laws import assert_laws
from tests.support.queue_world import LEASE_SECONDS, QueueWorld, open_index

LIMIT = 100.0


@pytest.fixture
def lease(world: QueueWorld) -> Lease:
    world.server(max_run_seconds=LIMIT)
    world.job()
    return world.claim()


def forget(world: QueueWorld) -> None:
    """Redis loses its data, and an index without the lease is opened."""
    world.flush()
    open_index(world.leases, "careless")


def sweep_after(world: QueueWorld, *seconds: float) -> SweepCount:
    count = SweepCount()
    for pause in seconds:
        world.clock.advance(pause)
        count += run_sweep("orphans", world.ports)
    return count


def test_a_run_within_its_models_limit_is_no_orphan(world: QueueWorld, lease: Lease) -> None:
    assert sweep_after(world, LIMIT, 59).repaired == 0
    assert Job.objects.get().state == JobState.RUNNING


def test_a_run_past_its_limit_without_a_worker_is_lost(world: QueueWorld, lease: Lease) -> None:
    world.leases.quarantine(lease.slot, lease.attempt_id)  # without its lease
    assert sweep_after(world, LIMIT + 61).repaired == 1
    attempt = Attempt.objects.get()
    assert (attempt.state, attempt.slot_freed) == (AttemptState.LOST, False)
    assert QuarantinedSlot.objects.get().attempt_id == lease.attempt_id
    assert (Job.objects.get().state, Job.objects.get().deaths) == (JobState.RETRYING, 0)
    assert world.slot() == "quarantined"


@pytest.mark.database
def test_each_model_has_its_own_run_limit(world: QueueWorld, lease: Lease) -> None:
    world.leases.quarantine(lease.slot, lease.attempt_id)
    ModelConfig.objects.filter(name="m").update(max_run_seconds=10 * LIMIT)
    assert sweep_after(world, LIMIT + 61).repaired == 0


@pytest.mark.database
def test_a_run_past_its_limit_is_left_to_a_worker_that_holds_it(world: QueueWorld, lease: Lease) -> None:
    assert sweep_after(world, LIMIT + 61).repaired == 0


def test_an_adoptable_run_that_no_worker_adopts_ends_at_its_limit(world: QueueWorld, lease: Lease) -> None:
    world.accept(lease)
    world.release(lease, ReleaseMode.ADOPT)
    assert sweep_after(world, LIMIT + 61).repaired == 1
    assert Job.objects.get().state == JobState.RETRYING
    assert world.slot() == "quarantined"
    assert world.leases.claim("m", worker="w2", attempt_id="x") is None


def test_an_accepted_run_without_a_lease_gets_it_back(world: QueueWorld, lease: Lease) -> None:
    world.accept(lease)
    forget(world)
    world.clock.advance(2 * LEASE_SECONDS + 1)
    assert sweep_after(world, 0, 10, 10).repaired == 0, "the attempt may be between a release and its commit"
    assert sweep_after(world, 11).repaired == 1
    assert world.leases.is_held(lease.ref)
    assert Attempt.objects.get().state == AttemptState.WAITING


def test_a_sent_run_without_a_lease_is_lost(world: QueueWorld, lease: Lease) -> None:
    forget(world)
    world.clock.advance(2 * LEASE_SECONDS + 1)
    assert sweep_after(world, 0, 31).repaired == 1
    assert Attempt.objects.get().state == AttemptState.LOST
    assert_laws(drained=True, ports=world.ports, accepted=1)


def test_a_young_index_proves_no_orphan(world: QueueWorld, lease: Lease) -> None:
    world.clock.advance(60)
    forget(world)
    assert sweep_after(world, 0, 29).repaired == 0


def test_without_redis_no_run_is_an_orphan(world: QueueWorld, lease: Lease) -> None:
    world.redis_is_gone = True
    count = sweep_after(world, LIMIT + 61)
    assert count.repaired == 0
    assert count.notes


def test_the_oldest_jobs_are_examined_first(world: QueueWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more jobs than one run reads, every job is examined eventually."""
    world.server(slots=3)
    ids = sorted(new_id() for _ in range(3))
    for job_id in (ids[1], ids[2], ids[0]):
        world.job(id=job_id)
        world.claim()
    monkeypatch.setattr(orphans, "LIMIT", 2)
    monkeypatch.setattr(orphans, "_oldest", statements.Read(orphans._running))
    looked_at = orphans._runs(world.clock.now() + timedelta(seconds=1))
    assert sorted(run.job.id for run in looked_at) == ids[:2]


def test_the_state_of_an_attempt_is_dropped_when_it_ends(world: QueueWorld) -> None:
    world.server(slots=2)
    for _ in range(2):
        world.job()
    ended, stays = world.claim(), world.claim()
    forget(world)
    world.clock.advance(2 * LEASE_SECONDS + 1)
    sweep = orphans.OrphansSweep()
    sweep(world.ports)
    assert set(sweep.leaseless_since) == {ended.attempt_id, stays.attempt_id}
    ending, now = Ending(None, suspect=False), world.clock.now()
    transitions.end_attempt(
        End(ended.job_id, ended.attempt_id, 1, ended.slot, ending, RetryPolicy(), now, result={})
    )
    world.clock.advance(1)
    sweep(world.ports)
    assert set(sweep.leaseless_since) == {stays.attempt_id}
