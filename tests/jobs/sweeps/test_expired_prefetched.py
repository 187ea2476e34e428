"""The sweep `expired_leases` on prefetched attempts of a dead worker."""

from __future__ import annotations

import pytest

from foundation.ids import new_id
from gpus.errors import ServerFailed
from gpus.models import ModelConfig, Placement, QuarantinedSlot
from gpus.protocol import Lease
from jobs.domain.retry import Ending
from jobs.domain.states import AttemptState, JobState
from jobs.index_rebuild.rebuild import mirror_fleet
from jobs.models import Attempt
from jobs.sweeps import expired_leases, quarantine
from tests.support.expiries import end, expire, job_of
from tests.support.queue_harness import QueueHarness
from tests.support.rebuilds import rebuild
from tests.support.servers.health_server import HealthServer

Pair = tuple[Lease, Lease]


@pytest.fixture
def pair(queue: QueueHarness, gpu: HealthServer) -> Pair:
    """A running attempt with a committed start, and the prefetched attempt (follower) of its slot."""
    queue.server(url=f"{gpu.url}/run")
    return claim_pair(queue)


def claim_pair(queue: QueueHarness, *, written: bool = True) -> Pair:
    for _ in range(3):
        queue.job()
        queue.clock.advance(0.001)
    holder = queue.claim(written=written)
    follower = queue.leases.reserve(holder.ref, worker="w1", next_attempt_id=new_id())
    assert follower is not None
    return holder, follower


def stands_in_line(queue: QueueHarness, lease: Lease) -> bool:
    """The job is as if never claimed: no charged try, no event, and its ticket at its place."""
    job = job_of(lease)
    assert not Attempt.objects.filter(job=job).exists()
    return job.state == JobState.QUEUED and queue.leases.remove("m", job.ticket)


@pytest.mark.parametrize("written", [True, False])
def test_the_running_attempt_is_lost_and_the_prefetched_job_is_queued_again(
    queue: QueueHarness, gpu: HealthServer, written: bool
) -> None:
    queue.server(url=f"{gpu.url}/run")
    holder, follower = claim_pair(queue, written=written)
    assert expire(queue).repaired == 1
    assert Attempt.objects.get().state == AttemptState.LOST
    assert job_of(holder).state == JobState.RETRYING
    assert queue.slot() == "quarantined"
    assert stands_in_line(queue, follower)


@pytest.mark.parametrize("written", [True, False])
def test_the_slot_stays_in_quarantine_while_either_attempt_runs(
    queue: QueueHarness, gpu: HealthServer, written: bool
) -> None:
    """The worker may have died while sending the prefetched job."""
    queue.server(url=f"{gpu.url}/run")
    holder, follower = claim_pair(queue, written=written)
    expire(queue)
    queue.clock.advance(2)
    for running in (holder, follower):
        gpu.lists((running.job_id, running.attempt_id))
        assert quarantine.sweep(queue.ports).repaired == 0
    gpu.lists(("another", "run"))
    assert quarantine.sweep(queue.ports).repaired == 1
    assert QuarantinedSlot.objects.get().follower_attempt_id == follower.attempt_id
    assert queue.slot() == "free"


def test_the_quarantine_lasts_for_the_longer_run_limit_of_both(
    queue: QueueHarness, gpu: HealthServer
) -> None:
    """The prefetched job's model may have a longer run limit."""
    server = queue.server(url=f"{gpu.url}/run", max_run_seconds=30.0)
    longer = ModelConfig.objects.create(name="longer", pool_id="m", max_run_seconds=300.0)
    Placement.objects.create(server=server, model=longer, endpoint=f"{gpu.url}/run")
    mirror_fleet(queue.fleet, queue.leases, queue.ports)
    for model in ("m", "longer", "m"):
        queue.job(model=model)
        queue.clock.advance(0.001)
    holder = queue.claim()
    assert queue.leases.reserve(holder.ref, worker="w1", next_attempt_id=new_id(), warm=["longer"])
    expire(queue)
    row = QuarantinedSlot.objects.get()
    assert (row.until - row.since).total_seconds() == 300.0


def test_a_prefetched_attempt_after_a_completed_run_counts_as_begun(queue: QueueHarness, pair: Pair) -> None:
    """Redis was unavailable when it began, and its worker died after committing the end before it."""
    holder, follower = pair
    end(queue, holder, ending=Ending())
    expire(queue)
    assert expired_leases.sweep(queue.ports).repaired == 1
    lost = Attempt.objects.get(id=follower.attempt_id)
    assert (lost.state, lost.job_id) == (AttemptState.LOST, follower.job_id)
    assert job_of(holder).state == JobState.COMPLETED
    assert QuarantinedSlot.objects.get().attempt_id == follower.attempt_id
    assert queue.slot() == "quarantined"


def test_a_prefetched_attempt_with_a_committed_start_is_lost(queue: QueueHarness, pair: Pair) -> None:
    holder, follower = pair
    end(queue, holder, ending=Ending())
    queue.start(follower)
    expire(queue)
    assert expired_leases.sweep(queue.ports).repaired == 1
    assert Attempt.objects.get(id=follower.attempt_id).state == AttemptState.LOST
    assert job_of(follower).state == JobState.RETRYING
    assert queue.slot() == "quarantined"


def test_after_a_failed_run_the_prefetched_job_has_not_begun(queue: QueueHarness, pair: Pair) -> None:
    holder, follower = pair
    end(queue, holder, ending=Ending(ServerFailed("no")))
    expire(queue)
    assert stands_in_line(queue, follower)


def test_adopting_a_polled_run_requeues_its_prefetched_job(queue: QueueHarness, pair: Pair) -> None:
    holder, follower = pair
    queue.accept(holder)
    expire(queue)
    assert queue.slot() == "adoptable"
    assert stands_in_line(queue, follower)


def test_a_prefetched_run_unknown_to_redis_is_no_orphan(queue: QueueHarness, pair: Pair) -> None:
    holder, follower = pair
    end(queue, holder, ending=Ending())
    queue.start(follower)
    assert queue.leases.is_held(follower.ref)


def test_a_rebuilt_index_keeps_one_slot_for_a_quarantine_with_a_prefetched_attempt(
    queue: QueueHarness, gpu: HealthServer
) -> None:
    """A prefetched attempt that the server runs is no unknown run: its slot is kept already."""
    queue.server(slots=2, url=f"{gpu.url}/run")
    _, follower = claim_pair(queue)
    expire(queue)
    gpu.lists((follower.job_id, follower.attempt_id))
    queue.flush()
    rebuild(queue)
    assert QuarantinedSlot.objects.filter(freed_at=None).count() == 1
    assert sorted(queue.slots()) == ["free", "quarantined"]
