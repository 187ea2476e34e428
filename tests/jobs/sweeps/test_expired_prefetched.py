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
from tests.support.queue_world import QueueWorld
from tests.support.rebuilds import rebuild
from tests.support.servers.health_server import HealthServer

Pair = tuple[Lease, Lease]


@pytest.fixture
def pair(world: QueueWorld, gpu: HealthServer) -> Pair:
    """A running attempt with a committed start, and the prefetched attempt (follower) of its slot."""
    world.server(url=f"{gpu.url}/run")
    return claim_pair(world)


def claim_pair(world: QueueWorld, *, written: bool = True) -> Pair:
    for _ in range(3):
        world.job()
        world.clock.advance(0.001)
    holder = world.claim(written=written)
    follower = world.leases.reserve(holder.ref, worker="w1", next_attempt_id=new_id())
    assert follower is not None
    return holder, follower


def stands_in_line(world: QueueWorld, lease: Lease) -> bool:
    """The job is as if never claimed: no charged try, no event, and its ticket at its place."""
    job = job_of(lease)
    assert not Attempt.objects.filter(job=job).exists()
    return job.state == JobState.QUEUED and world.leases.remove("m", job.ticket)


@pytest.mark.parametrize("written", [True, False])
def test_the_running_attempt_is_lost_and_the_prefetched_job_is_queued_again(
    world: QueueWorld, gpu: HealthServer, written: bool
) -> None:
    world.server(url=f"{gpu.url}/run")
    holder, follower = claim_pair(world, written=written)
    assert expire(world).repaired == 1
    assert Attempt.objects.get().state == AttemptState.LOST
    assert job_of(holder).state == JobState.RETRYING
    assert world.slot() == "quarantined"
    assert stands_in_line(world, follower)


@pytest.mark.parametrize("written", [True, False])
def test_the_slot_stays_in_quarantine_while_either_attempt_runs(
    world: QueueWorld, gpu: HealthServer, written: bool
) -> None:
    """The worker may have died while sending the prefetched job."""
    world.server(url=f"{gpu.url}/run")
    holder, follower = claim_pair(world, written=written)
    expire(world)
    world.clock.advance(2)
    for running in (holder, follower):
        gpu.lists((running.job_id, running.attempt_id))
        assert quarantine.sweep(world.ports).repaired == 0
    gpu.lists(("another", "run"))
    assert quarantine.sweep(world.ports).repaired == 1
    assert QuarantinedSlot.objects.get().follower_attempt_id == follower.attempt_id
    assert world.slot() == "free"


def test_the_quarantine_lasts_for_the_longer_run_limit_of_both(world: QueueWorld, gpu: HealthServer) -> None:
    """The prefetched job's model may have a longer run limit."""
    server = world.server(url=f"{gpu.url}/run", max_run_seconds=30.0)
    longer = ModelConfig.objects.create(name="longer", pool_id="m", max_run_seconds=300.0)
    Placement.objects.create(server=server, model=longer, endpoint=f"{gpu.url}/run")
    mirror_fleet(world.fleet, world.leases, world.ports)
    for model in ("m", "longer", "m"):
        world.job(model=model)
        world.clock.advance(0.001)
    holder = world.claim()
    assert world.leases.reserve(holder.ref, worker="w1", next_attempt_id=new_id(), warm=["longer"])
    expire(world)
    row = QuarantinedSlot.objects.get()
    assert (row.until - row.since).total_seconds() == 300.0


def test_a_prefetched_attempt_after_a_completed_run_counts_as_begun(world: QueueWorld, pair: Pair) -> None:
    """Redis was unavailable when it began, and its worker died after committing the end before it."""
    holder, follower = pair
    end(world, holder, ending=Ending())
    expire(world)
    assert expired_leases.sweep(world.ports).repaired == 1
    lost = Attempt.objects.get(id=follower.attempt_id)
    assert (lost.state, lost.job_id) == (AttemptState.LOST, follower.job_id)
    assert job_of(holder).state == JobState.COMPLETED
    assert QuarantinedSlot.objects.get().attempt_id == follower.attempt_id
    assert world.slot() == "quarantined"


def test_a_prefetched_attempt_with_a_committed_start_is_lost(world: QueueWorld, pair: Pair) -> None:
    holder, follower = pair
    end(world, holder, ending=Ending())
    world.start(follower)
    expire(world)
    assert expired_leases.sweep(world.ports).repaired == 1
    assert Attempt.objects.get(id=follower.attempt_id).state == AttemptState.LOST
    assert job_of(follower).state == JobState.RETRYING
    assert world.slot() == "quarantined"


def test_after_a_failed_run_the_prefetched_job_has_not_begun(world: QueueWorld, pair: Pair) -> None:
    holder, follower = pair
    end(world, holder, ending=Ending(ServerFailed("no")))
    expire(world)
    assert stands_in_line(world, follower)


def test_adopting_a_polled_run_requeues_its_prefetched_job(world: QueueWorld, pair: Pair) -> None:
    holder, follower = pair
    world.accept(holder)
    expire(world)
    assert world.slot() == "adoptable"
    assert stands_in_line(world, follower)


def test_a_prefetched_run_unknown_to_redis_is_no_orphan(world: QueueWorld, pair: Pair) -> None:
    holder, follower = pair
    end(world, holder, ending=Ending())
    world.start(follower)
    assert world.leases.is_held(follower.ref)


def test_a_rebuilt_index_keeps_one_slot_for_a_quarantine_with_a_prefetched_attempt(
    world: QueueWorld, gpu: HealthServer
) -> None:
    """A prefetched attempt that the server runs is no unknown run: its slot is kept already."""
    world.server(slots=2, url=f"{gpu.url}/run")
    _, follower = claim_pair(world)
    expire(world)
    gpu.lists((follower.job_id, follower.attempt_id))
    world.flush()
    rebuild(world)
    assert QuarantinedSlot.objects.filter(freed_at=None).count() == 1
    assert sorted(world.slots()) == ["free", "quarantined"]
