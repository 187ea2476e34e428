"""A lost index is rebuilt from the database, and no slot or ticket is granted twice on the way."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import pytest

from gpus.errors import LeasingFull, LeasingUnavailable, ServerLost
from gpus.leasing.keeper import LeaseKeeper
from gpus.leasing.store import RedisLeases
from gpus.models import QuarantinedSlot, Server
from gpus.protocol import Lease, LeaseRef, ReleaseMode
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.index_rebuild import rebuild as rebuilding
from jobs.index_rebuild.rebuild import Progress, Rebuild
from jobs.sweeps import generation
from jobs.transitions import End
from tests.support.by_process import run_sweep
from tests.support.laws import assert_laws
from tests.support.pool_rules import mirrored_rules
from tests.support.queue_world import QueueWorld
from tests.support.rebuilds import ended_without_proof, rebuild


def test_a_complete_index_is_not_rebuilt(world: QueueWorld) -> None:
    before = world.leases.generation()
    assert not generation.is_needed(world.ports)
    assert run_sweep("generation", world.ports).repaired == 0
    assert world.leases.generation() == before


def test_the_index_of_an_empty_dispatcher_opens_at_once(world: QueueWorld) -> None:
    world.server(slots=2)
    world.flush()
    assert generation.is_needed(world.ports)
    assert rebuild(world) == 0
    assert world.slots() == ["free", "free"]


def test_live_attempts_get_their_slots_back_and_waiting_jobs_their_places(world: QueueWorld) -> None:
    world.server(slots=2)
    running, first, second = world.job(), world.job(), world.job(priority=1)
    lease = world.claim()  # the urgent job
    world.accept(lease)
    world.flush()
    with pytest.raises(LeasingUnavailable):
        world.leases.claim("m", worker="w", attempt_id="a")
    assert rebuild(world) <= 10
    assert world.leases.is_held(lease.ref)
    assert lease.job_id == second.id
    following = world.leases.claim("m", worker="w", attempt_id="next")
    assert following is not None
    assert following.job_id == running.id
    assert world.leases.has_tickets("m", [first.ticket]) == [True]
    assert world.leases.claim("m", worker="w", attempt_id="more") is None
    assert sum(wake.count for wake in world.wakes) >= 1


def test_an_end_that_is_committed_while_its_lease_is_restored_leaves_no_lease(
    world: QueueWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.server()
    world.job()
    lease = world.claim()
    restore = world.leases.restore_lease

    def end_and_restore(restored: Lease, **held: Any) -> bool:
        end = End(lease.job_id, lease.attempt_id, 1, lease.slot, Ending(), RetryPolicy(), world.clock.now())
        transitions.end_attempt(end)
        world.leases.confirm_ends([lease.ref])
        return restore(restored, **held)

    monkeypatch.setattr(world.leases, "restore_lease", end_and_restore)
    world.flush()
    rebuild(world)
    assert world.slot() == "free"
    assert_laws(drained=True, ports=world.ports, accepted=1)


def test_a_lease_keeper_announces_a_lease_without_a_row(world: QueueWorld) -> None:
    world.server(slots=1)
    world.job()
    world.job()
    lease = world.claim(written=False)
    world.flush()
    run_sweep("generation", world.ports)
    assert world.leases.generation() is None
    with pytest.raises(LeasingUnavailable):
        world.leases.claim("m", worker="w", attempt_id="a")
    assert world.leases.renew("w1", [lease], []) == []
    rebuild(world)
    assert world.leases.is_held(lease.ref)
    assert world.leases.claim("m", worker="w", attempt_id="a") is None


def test_a_rebuild_waits_for_announced_leases_and_not_for_the_next_renewal(
    world: QueueWorld,
) -> None:
    world.server(slots=1)
    world.job()
    lease = world.claim(written=False)
    lost: list[LeaseRef] = []
    keeper = LeaseKeeper(
        lambda fleet: world.leases,
        worker="w1",
        renew_seconds=10_000,
        clock=world.clock,
        on_lost=lost.append,
    )
    keeper.add(lease)
    keeper.step(world.clock.monotonic())
    world.flush()
    while not world.leases.generation():
        run_sweep("generation", world.ports)
        world.clock.advance(1)
        assert keeper.step(world.clock.monotonic()) == []
    assert world.leases.is_held(lease.ref)
    assert lost == []


def test_the_age_of_a_restored_run_comes_from_its_row(world: QueueWorld) -> None:
    """All clocks were an hour ahead, and were corrected: the fleet's time goes on from there."""
    world.server()
    world.clock.advance(3600)
    world.leases.fill()
    world.clock.set_back(3600)
    world.job()
    world.claim()
    world.flush()
    taken = rebuild(world)
    assert world.leases.slots("gpu-1")[0].held_seconds == pytest.approx(taken, abs=1.0)


def test_the_epoch_of_a_restored_lease_comes_from_the_database(world: QueueWorld) -> None:
    world.server()
    world.job()
    lease = world.claim()
    world.accept(lease)
    transitions.take_over(lease.job_id, lease.attempt_id, 1, "w2", world.clock.now())
    world.flush()
    rebuild(world)
    assert not world.leases.is_held(lease.ref)
    assert world.leases.is_held(LeaseRef(lease.slot, lease.job_id, lease.attempt_id, 2))
    assert_laws(drained=True, ports=world.ports, accepted=1)


def test_quarantined_slots_stay_quarantined(world: QueueWorld) -> None:
    world.server()
    ended_without_proof(world)
    world.flush()
    rebuild(world)
    assert world.slot() == "quarantined"


def test_a_slot_without_proof_of_its_last_end_is_quarantined(world: QueueWorld) -> None:
    """The server was not registered when the slot's last attempt ended without a proof."""
    server = world.server()
    lease = ended_without_proof(world)
    QuarantinedSlot.objects.all().delete()
    world.flush()
    rebuild(world)
    row = QuarantinedSlot.objects.get()
    assert (row.server_id, row.attempt_id) == (server.name, lease.attempt_id)
    assert world.slot() == "quarantined"


def test_a_slot_proven_free_meanwhile_is_free(world: QueueWorld) -> None:
    world.server()
    ended_without_proof(world)
    QuarantinedSlot.objects.update(freed_at=world.clock.now())
    world.flush()
    rebuild(world)
    assert world.slot() == "free"
    assert QuarantinedSlot.objects.count() == 1


def test_the_registry_and_the_weights_come_back(world: QueueWorld) -> None:
    Server.objects.all().delete()
    world.server(slots=3)
    world.tenant.weight = 4.0
    world.tenant.save()
    world.flush()
    rebuild(world)
    assert len(world.leases.slots("gpu-1")) == 3
    assert mirrored_rules(world) == (4.0, 1, None)


def test_only_one_process_rebuilds(world: QueueWorld) -> None:
    world.server()
    world.job()
    world.flush()
    assert world.leases.begin_rebuild("another process")
    count = run_sweep("generation", world.ports)
    assert any("another process" in note for note in count.notes)
    world.clock.advance(31)  # the process died
    assert rebuild(world) <= 10


def test_a_flush_during_a_rebuild_restarts_it(world: QueueWorld) -> None:
    world.server()
    job = world.job()
    world.flush()
    run_sweep("generation", world.ports)
    world.flush()
    rebuild(world)
    assert world.slot() == "free"
    lease = world.leases.claim("m", worker="w", attempt_id="a")
    assert lease is not None
    assert lease.job_id == job.id


def test_after_a_second_flush_registry_and_leases_are_written_again_although_a_write_failed(
    world: QueueWorld,
) -> None:
    world.server()
    world.job()
    world.flush()
    run_sweep("generation", world.ports)
    world.flush()
    with patch.object(rebuilding, "park_exhausted", side_effect=LeasingUnavailable("no reply")):
        run_sweep("generation", world.ports)
    world.clock.advance(60)
    with patch.object(rebuilding, "park_exhausted", return_value=()) as park:
        run_sweep("generation", world.ports)
    assert park.called
    assert world.leases.generation() is None, "what keepers announced is lost as well"
    rebuild(world)
    assert world.slot() == "free"


def test_two_leases_of_one_slot_end_with_the_later_one(world: QueueWorld) -> None:
    """The end of the first one is not committed; the worker of the second one lives."""
    world.server()
    world.job()
    world.job()
    first = world.claim()
    world.clock.advance(1)
    second = world.leases.release(first.ref, ReleaseMode.ENDED, worker="w1", next_attempt_id="second")
    assert second is not None
    world.flush()
    run_sweep("generation", world.ports)
    assert world.leases.renew("w1", [second], [first]) == []
    rebuild(world)
    assert world.leases.is_held(second.ref)


def test_a_queue_that_does_not_fit_into_redis_does_not_keep_the_index_closed(world: QueueWorld) -> None:
    """The index has the oldest tickets."""
    world.server()
    world.job(), world.job()
    world.flush()
    with patch.object(type(world.leases), "push", side_effect=LeasingFull("at its maxmemory")):
        rebuild(world)
    assert world.leases.generation() is not None
    assert world.leases.claim("m", worker="w", attempt_id="a") is None


def test_after_a_rebuild_without_jobs_no_start_is_awaited(world: QueueWorld) -> None:
    """As after the first start: the first jobs start as fast as later ones."""
    world.server()
    world.flush()
    rebuild(world)
    world.job()  # submitted later: no lease is older than the index
    assert world.leases.unsure_age_seconds() == math.inf


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_after_a_rebuild_with_a_job_that_a_worker_may_hold_starts_are_awaited(
    world: QueueWorld, state: str
) -> None:
    """A worker without a committed start may have sent it, and the start may still be written."""
    world.server()
    world.job()
    if state == "running":
        world.accept(world.claim())
    world.flush()
    rebuild(world)
    age = world.leases.unsure_age_seconds()
    assert age is not None
    assert age < 15


@pytest.mark.parametrize("is_registered_meanwhile", [True, False])
def test_fences_increase_although_the_new_redis_has_a_clock_behind(
    world: QueueWorld, is_registered_meanwhile: bool
) -> None:
    """The servers remember the highest one and refuse what is below."""
    server = world.server(slots=2)
    for _ in range(3):
        world.job()
    first = world.claim()
    world.clock.advance(30)
    latest = world.claim()
    for lease in (first, latest):
        end(world, lease)
    lose_to_a_clock_behind(world)
    if not is_registered_meanwhile:
        server.delete()
    rebuild(world)
    if not is_registered_meanwhile:
        world.server(slots=2)
    assert world.claim(written=False).fence > max(first.fence, latest.fence)


def test_a_rebuild_that_begins_anew_reads_the_latest_start_again(world: QueueWorld) -> None:
    """Its process did not learn that it was done, so it goes on with it after the next loss."""
    world.server()
    for _ in range(2):
        world.job()
    world.flush()
    unfinished = Rebuild.of(world.fleet, world.leases, world.ports)
    finish(unfinished, world)
    world.clock.advance(30)
    latest = world.claim()
    end(world, latest)
    lose_to_a_clock_behind(world)
    unfinished.leases = world.leases
    finish(unfinished, world)
    assert world.claim(written=False).fence > latest.fence


def finish(one: Rebuild, world: QueueWorld) -> None:
    for _ in range(12):
        if one.step() is Progress.OPEN:
            return
        world.clock.advance(1)
    raise AssertionError("not rebuilt within twelve steps")


def end(world: QueueWorld, lease: Lease) -> None:
    world.release(lease)
    lost = Ending(ServerLost(), suspect=False)
    retry = RetryPolicy(jitter=0.0)
    transitions.end_attempt(
        End(lease.job_id, lease.attempt_id, 1, lease.slot, lost, retry, world.clock.now())
    )


def lose_to_a_clock_behind(world: QueueWorld) -> None:
    """Replace Redis by an empty one whose clock is two minutes behind."""
    world.flush()
    world.client.delete(*world.client.keys(f"*{{{world.fleet}}}:clock"))
    world.leases = RedisLeases(
        world.client,
        world.fleet,
        now_ms=lambda: world.clock.now_ms() - 120_000,
        monotonic=world.clock.monotonic,
    )
