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
from tests.support.queue_harness import QueueHarness
from tests.support.rebuilds import ended_without_proof, rebuild


def test_a_complete_index_is_not_rebuilt(queue: QueueHarness) -> None:
    before = queue.leases.generation()
    assert not generation.is_needed(queue.ports)
    assert run_sweep("generation", queue.ports).repaired == 0
    assert queue.leases.generation() == before


def test_the_index_of_an_empty_dispatcher_opens_at_once(queue: QueueHarness) -> None:
    queue.server(slots=2)
    queue.flush()
    assert generation.is_needed(queue.ports)
    assert rebuild(queue) == 0
    assert queue.slots() == ["free", "free"]


def test_live_attempts_get_their_slots_back_and_waiting_jobs_their_places(queue: QueueHarness) -> None:
    queue.server(slots=2)
    running, first, second = queue.job(), queue.job(), queue.job(priority=1)
    lease = queue.claim()  # the urgent job
    queue.accept(lease)
    queue.flush()
    with pytest.raises(LeasingUnavailable):
        queue.leases.claim("m", worker="w", attempt_id="a")
    assert rebuild(queue) <= 10
    assert queue.leases.is_held(lease.ref)
    assert lease.job_id == second.id
    following = queue.leases.claim("m", worker="w", attempt_id="next")
    assert following is not None
    assert following.job_id == running.id
    assert queue.leases.has_tickets("m", [first.ticket]) == [True]
    assert queue.leases.claim("m", worker="w", attempt_id="more") is None
    assert sum(wake.count for wake in queue.wakes) >= 1


def test_an_end_that_is_committed_while_its_lease_is_restored_leaves_no_lease(
    queue: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.server()
    queue.job()
    lease = queue.claim()
    restore = queue.leases.restore_lease

    def end_and_restore(restored: Lease, **held: Any) -> bool:
        end = End(lease.job_id, lease.attempt_id, 1, lease.slot, Ending(), RetryPolicy(), queue.clock.now())
        transitions.end_attempt(end)
        queue.leases.confirm_ends([lease.ref])
        return restore(restored, **held)

    monkeypatch.setattr(queue.leases, "restore_lease", end_and_restore)
    queue.flush()
    rebuild(queue)
    assert queue.slot() == "free"
    assert_laws(drained=True, ports=queue.ports, accepted=1)


def test_a_lease_keeper_announces_a_lease_without_a_row(queue: QueueHarness) -> None:
    queue.server(slots=1)
    queue.job()
    queue.job()
    lease = queue.claim(written=False)
    queue.flush()
    run_sweep("generation", queue.ports)
    assert queue.leases.generation() is None
    with pytest.raises(LeasingUnavailable):
        queue.leases.claim("m", worker="w", attempt_id="a")
    assert queue.leases.renew("w1", [lease], []) == []
    rebuild(queue)
    assert queue.leases.is_held(lease.ref)
    assert queue.leases.claim("m", worker="w", attempt_id="a") is None


def test_a_rebuild_waits_for_announced_leases_and_not_for_the_next_renewal(
    queue: QueueHarness,
) -> None:
    queue.server(slots=1)
    queue.job()
    lease = queue.claim(written=False)
    lost: list[LeaseRef] = []
    keeper = LeaseKeeper(
        lambda fleet: queue.leases,
        worker="w1",
        renew_seconds=10_000,
        clock=queue.clock,
        on_lost=lost.append,
    )
    keeper.add(lease)
    keeper.step(queue.clock.monotonic())
    queue.flush()
    while not queue.leases.generation():
        run_sweep("generation", queue.ports)
        queue.clock.advance(1)
        assert keeper.step(queue.clock.monotonic()) == []
    assert queue.leases.is_held(lease.ref)
    assert lost == []


def test_the_age_of_a_restored_run_comes_from_its_row(queue: QueueHarness) -> None:
    """All clocks were an hour ahead, and were corrected: the fleet's time goes on from there."""
    queue.server()
    queue.clock.advance(3600)
    queue.leases.fill()
    queue.clock.set_back(3600)
    queue.job()
    queue.claim()
    queue.flush()
    taken = rebuild(queue)
    assert queue.leases.slots("gpu-1")[0].held_seconds == pytest.approx(taken, abs=1.0)


def test_the_epoch_of_a_restored_lease_comes_from_the_database(queue: QueueHarness) -> None:
    queue.server()
    queue.job()
    lease = queue.claim()
    queue.accept(lease)
    transitions.take_over(lease.job_id, lease.attempt_id, 1, "w2", queue.clock.now())
    queue.flush()
    rebuild(queue)
    assert not queue.leases.is_held(lease.ref)
    assert queue.leases.is_held(LeaseRef(lease.slot, lease.job_id, lease.attempt_id, 2))
    assert_laws(drained=True, ports=queue.ports, accepted=1)


def test_quarantined_slots_stay_quarantined(queue: QueueHarness) -> None:
    queue.server()
    ended_without_proof(queue)
    queue.flush()
    rebuild(queue)
    assert queue.slot() == "quarantined"


def test_a_slot_without_proof_of_its_last_end_is_quarantined(queue: QueueHarness) -> None:
    """The server was not registered when the slot's last attempt ended without a proof."""
    server = queue.server()
    lease = ended_without_proof(queue)
    QuarantinedSlot.objects.all().delete()
    queue.flush()
    rebuild(queue)
    row = QuarantinedSlot.objects.get()
    assert (row.server_id, row.attempt_id) == (server.name, lease.attempt_id)
    assert queue.slot() == "quarantined"


def test_a_slot_proven_free_meanwhile_is_free(queue: QueueHarness) -> None:
    queue.server()
    ended_without_proof(queue)
    QuarantinedSlot.objects.update(freed_at=queue.clock.now())
    queue.flush()
    rebuild(queue)
    assert queue.slot() == "free"
    assert QuarantinedSlot.objects.count() == 1


def test_the_registry_and_the_weights_come_back(queue: QueueHarness) -> None:
    Server.objects.all().delete()
    queue.server(slots=3)
    queue.tenant.weight = 4.0
    queue.tenant.save()
    queue.flush()
    rebuild(queue)
    assert len(queue.leases.slots("gpu-1")) == 3
    assert mirrored_rules(queue) == (4.0, 1, None)


def test_only_one_process_rebuilds(queue: QueueHarness) -> None:
    queue.server()
    queue.job()
    queue.flush()
    assert queue.leases.begin_rebuild("another process")
    count = run_sweep("generation", queue.ports)
    assert any("another process" in note for note in count.notes)
    queue.clock.advance(31)  # the process died
    assert rebuild(queue) <= 10


def test_a_flush_during_a_rebuild_restarts_it(queue: QueueHarness) -> None:
    queue.server()
    job = queue.job()
    queue.flush()
    run_sweep("generation", queue.ports)
    queue.flush()
    rebuild(queue)
    assert queue.slot() == "free"
    lease = queue.leases.claim("m", worker="w", attempt_id="a")
    assert lease is not None
    assert lease.job_id == job.id


def test_after_a_second_flush_registry_and_leases_are_written_again_although_a_write_failed(
    queue: QueueHarness,
) -> None:
    queue.server()
    queue.job()
    queue.flush()
    run_sweep("generation", queue.ports)
    queue.flush()
    with patch.object(rebuilding, "park_exhausted", side_effect=LeasingUnavailable("no reply")):
        run_sweep("generation", queue.ports)
    queue.clock.advance(60)
    with patch.object(rebuilding, "park_exhausted", return_value=()) as park:
        run_sweep("generation", queue.ports)
    assert park.called
    assert queue.leases.generation() is None, "what keepers announced is lost as well"
    rebuild(queue)
    assert queue.slot() == "free"


def test_two_leases_of_one_slot_end_with_the_later_one(queue: QueueHarness) -> None:
    """The end of the first one is not committed; the worker of the second one lives."""
    queue.server()
    queue.job()
    queue.job()
    first = queue.claim()
    queue.clock.advance(1)
    second = queue.leases.release(first.ref, ReleaseMode.ENDED, worker="w1", next_attempt_id="second")
    assert second is not None
    queue.flush()
    run_sweep("generation", queue.ports)
    assert queue.leases.renew("w1", [second], [first]) == []
    rebuild(queue)
    assert queue.leases.is_held(second.ref)


def test_a_queue_that_does_not_fit_into_redis_does_not_keep_the_index_closed(queue: QueueHarness) -> None:
    """The index has the oldest tickets."""
    queue.server()
    queue.job(), queue.job()
    queue.flush()
    with patch.object(type(queue.leases), "push", side_effect=LeasingFull("at its maxmemory")):
        rebuild(queue)
    assert queue.leases.generation() is not None
    assert queue.leases.claim("m", worker="w", attempt_id="a") is None


def test_after_a_rebuild_without_jobs_no_start_is_awaited(queue: QueueHarness) -> None:
    """As after the first start: the first jobs start as fast as later ones."""
    queue.server()
    queue.flush()
    rebuild(queue)
    queue.job()  # submitted later: no lease is older than the index
    assert queue.leases.unsure_age_seconds() == math.inf


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_after_a_rebuild_with_a_job_that_a_worker_may_hold_starts_are_awaited(
    queue: QueueHarness, state: str
) -> None:
    """A worker without a committed start may have sent it, and the start may still be written."""
    queue.server()
    queue.job()
    if state == "running":
        queue.accept(queue.claim())
    queue.flush()
    rebuild(queue)
    age = queue.leases.unsure_age_seconds()
    assert age is not None
    assert age < 15


@pytest.mark.parametrize("is_registered_meanwhile", [True, False])
def test_fences_increase_although_the_new_redis_has_a_clock_behind(
    queue: QueueHarness, is_registered_meanwhile: bool
) -> None:
    """The servers remember the highest one and refuse what is below."""
    server = queue.server(slots=2)
    for _ in range(3):
        queue.job()
    first = queue.claim()
    queue.clock.advance(30)
    latest = queue.claim()
    for lease in (first, latest):
        end(queue, lease)
    lose_to_a_clock_behind(queue)
    if not is_registered_meanwhile:
        server.delete()
    rebuild(queue)
    if not is_registered_meanwhile:
        queue.server(slots=2)
    assert queue.claim(written=False).fence > max(first.fence, latest.fence)


def test_a_rebuild_that_begins_anew_reads_the_latest_start_again(queue: QueueHarness) -> None:
    """Its process did not learn that it was done, so it goes on with it after the next loss."""
    queue.server()
    for _ in range(2):
        queue.job()
    queue.flush()
    unfinished = Rebuild.of(queue.fleet, queue.leases, queue.ports)
    finish(unfinished, queue)
    queue.clock.advance(30)
    latest = queue.claim()
    end(queue, latest)
    lose_to_a_clock_behind(queue)
    unfinished.leases = queue.leases
    finish(unfinished, queue)
    assert queue.claim(written=False).fence > latest.fence


def finish(one: Rebuild, queue: QueueHarness) -> None:
    for _ in range(12):
        if one.step() is Progress.OPEN:
            return
        queue.clock.advance(1)
    raise AssertionError("not rebuilt within twelve steps")


def end(queue: QueueHarness, lease: Lease) -> None:
    queue.release(lease)
    lost = Ending(ServerLost(), suspect=False)
    retry = RetryPolicy(jitter=0.0)
    transitions.end_attempt(
        End(lease.job_id, lease.attempt_id, 1, lease.slot, lost, retry, queue.clock.now())
    )


def lose_to_a_clock_behind(queue: QueueHarness) -> None:
    """Replace Redis by an empty one whose clock is two minutes behind."""
    queue.flush()
    queue.client.delete(*queue.client.keys(f"*{{{queue.fleet}}}:clock"))
    queue.leases = RedisLeases(
        queue.client,
        queue.fleet,
        now_ms=lambda: queue.clock.now_ms() - 120_000,
        monotonic=queue.clock.monotonic,
    )
