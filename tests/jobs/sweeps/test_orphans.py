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
from tests.support.queue_harness import LEASE_SECONDS, QueueHarness, open_index

LIMIT = 100.0


@pytest.fixture
def lease(queue: QueueHarness) -> Lease:
    queue.server(max_run_seconds=LIMIT)
    queue.job()
    return queue.claim()


def forget(queue: QueueHarness) -> None:
    """Redis loses its data, and an index without the lease is opened."""
    queue.flush()
    open_index(queue.leases, "careless")


def sweep_after(queue: QueueHarness, *seconds: float) -> SweepCount:
    count = SweepCount()
    for pause in seconds:
        queue.clock.advance(pause)
        count += run_sweep("orphans", queue.ports)
    return count


def test_a_run_within_its_models_limit_is_no_orphan(queue: QueueHarness, lease: Lease) -> None:
    assert sweep_after(queue, LIMIT, 59).repaired == 0
    assert Job.objects.get().state == JobState.RUNNING


def test_a_run_past_its_limit_without_a_worker_is_lost(queue: QueueHarness, lease: Lease) -> None:
    queue.leases.quarantine(lease.slot, lease.attempt_id)  # without its lease
    assert sweep_after(queue, LIMIT + 61).repaired == 1
    attempt = Attempt.objects.get()
    assert (attempt.state, attempt.slot_freed) == (AttemptState.LOST, False)
    assert QuarantinedSlot.objects.get().attempt_id == lease.attempt_id
    assert (Job.objects.get().state, Job.objects.get().deaths) == (JobState.RETRYING, 0)
    assert queue.slot() == "quarantined"


@pytest.mark.database
def test_each_model_has_its_own_run_limit(queue: QueueHarness, lease: Lease) -> None:
    queue.leases.quarantine(lease.slot, lease.attempt_id)
    ModelConfig.objects.filter(name="m").update(max_run_seconds=10 * LIMIT)
    assert sweep_after(queue, LIMIT + 61).repaired == 0


@pytest.mark.database
def test_a_run_past_its_limit_is_left_to_a_worker_that_holds_it(queue: QueueHarness, lease: Lease) -> None:
    assert sweep_after(queue, LIMIT + 61).repaired == 0


def test_an_adoptable_run_that_no_worker_adopts_ends_at_its_limit(queue: QueueHarness, lease: Lease) -> None:
    queue.accept(lease)
    queue.release(lease, ReleaseMode.ADOPT)
    assert sweep_after(queue, LIMIT + 61).repaired == 1
    assert Job.objects.get().state == JobState.RETRYING
    assert queue.slot() == "quarantined"
    assert queue.leases.claim("m", worker="w2", attempt_id="x") is None


def test_an_accepted_run_without_a_lease_gets_it_back(queue: QueueHarness, lease: Lease) -> None:
    queue.accept(lease)
    forget(queue)
    queue.clock.advance(2 * LEASE_SECONDS + 1)
    assert sweep_after(queue, 0, 10, 10).repaired == 0, "the attempt may be between a release and its commit"
    assert sweep_after(queue, 11).repaired == 1
    assert queue.leases.is_held(lease.ref)
    assert Attempt.objects.get().state == AttemptState.WAITING


def test_a_sent_run_without_a_lease_is_lost(queue: QueueHarness, lease: Lease) -> None:
    forget(queue)
    queue.clock.advance(2 * LEASE_SECONDS + 1)
    assert sweep_after(queue, 0, 31).repaired == 1
    assert Attempt.objects.get().state == AttemptState.LOST
    assert_laws(drained=True, ports=queue.ports, accepted=1)


def test_a_young_index_proves_no_orphan(queue: QueueHarness, lease: Lease) -> None:
    queue.clock.advance(60)
    forget(queue)
    assert sweep_after(queue, 0, 29).repaired == 0


def test_without_redis_no_run_is_an_orphan(queue: QueueHarness, lease: Lease) -> None:
    queue.redis_is_gone = True
    count = sweep_after(queue, LIMIT + 61)
    assert count.repaired == 0
    assert count.notes


def test_the_oldest_jobs_are_examined_first(queue: QueueHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more jobs than one run reads, every job is examined eventually."""
    queue.server(slots=3)
    ids = sorted(new_id() for _ in range(3))
    for job_id in (ids[1], ids[2], ids[0]):
        queue.job(id=job_id)
        queue.claim()
    monkeypatch.setattr(orphans, "LIMIT", 2)
    monkeypatch.setattr(orphans, "_oldest", statements.Read(orphans._running))
    looked_at = orphans._runs(queue.clock.now() + timedelta(seconds=1))
    assert sorted(run.job.id for run in looked_at) == ids[:2]


def test_the_state_of_an_attempt_is_dropped_when_it_ends(queue: QueueHarness) -> None:
    queue.server(slots=2)
    for _ in range(2):
        queue.job()
    ended, stays = queue.claim(), queue.claim()
    forget(queue)
    queue.clock.advance(2 * LEASE_SECONDS + 1)
    sweep = orphans.OrphansSweep()
    sweep(queue.ports)
    assert set(sweep.leaseless_since) == {ended.attempt_id, stays.attempt_id}
    ending, now = Ending(None, suspect=False), queue.clock.now()
    transitions.end_attempt(
        End(ended.job_id, ended.attempt_id, 1, ended.slot, ending, RetryPolicy(), now, result={})
    )
    queue.clock.advance(1)
    sweep(queue.ports)
    assert set(sweep.leaseless_since) == {stays.attempt_id}
