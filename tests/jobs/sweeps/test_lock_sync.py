"""The sweep `lock_sync`: health reports are compared and recorded, and never delete a lease."""

from __future__ import annotations

import pytest

from gpus.errors import RunTimedOut
from gpus.models import QuarantinedSlot, Server
from gpus.protocol import ExpiryVerdict, Lease, ReleaseMode
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.domain.states import AttemptState, JobState
from jobs.models import Attempt, Job
from jobs.sweeps.base import SweepCount
from jobs.transitions import End
from tests.support.by_process import run_sweep
from tests.support.queue_world import LEASE_SECONDS, QueueWorld
from tests.support.servers.health_server import HealthServer


@pytest.fixture
def lease(world: QueueWorld, gpu: HealthServer) -> Lease:
    world.server(url=f"{gpu.url}/run")
    world.job()
    lease = world.claim()
    world.accept(lease)
    gpu.runs(lease.attempt_id)
    sweep(world)
    return lease


def sweep(world: QueueWorld) -> SweepCount:
    count = run_sweep("lock_sync", world.ports)
    assert count.failed == 0
    return count


def test_a_servers_health_is_written_to_its_row(world: QueueWorld, gpu: HealthServer, lease: Lease) -> None:
    server = Server.objects.get()
    assert (server.healthy, server.boot_id, server.checked_at) == (True, "boot-1", world.clock.now())
    gpu.status = 500
    count = sweep(world)
    server.refresh_from_db()
    assert server.healthy is False
    assert "500" in server.last_error
    assert any("500" in note for note in count.notes)


def test_a_lease_that_the_server_does_not_confirm_is_noted_and_stays(
    world: QueueWorld, gpu: HealthServer, lease: Lease
) -> None:
    gpu.runs()
    assert sweep(world).notes == (), "the run may be about to arrive"
    world.clock.advance(11)
    assert sweep(world).notes == ("gpu-1: does not run 1 of its 1 leased attempts",)
    assert world.leases.is_held(lease.ref)
    assert Attempt.objects.get().state == AttemptState.WAITING


def test_attempts_that_hold_no_slot_are_noted(world: QueueWorld, gpu: HealthServer, lease: Lease) -> None:
    gpu.runs(lease.attempt_id, "stranger")
    assert sweep(world).notes == ("gpu-1: runs 1 attempts that hold no slot",)


def test_a_polled_run_of_an_earlier_boot_is_left_to_its_worker(
    world: QueueWorld, gpu: HealthServer, lease: Lease
) -> None:
    gpu.runs(boot_id="boot-2")
    assert sweep(world).repaired == 0
    assert Job.objects.get().state == JobState.RUNNING
    assert world.leases.is_held(lease.ref)


def test_an_adoptable_run_of_an_earlier_boot_is_lost_and_its_slot_free(
    world: QueueWorld, gpu: HealthServer, lease: Lease
) -> None:
    world.release(lease, ReleaseMode.ADOPT)
    gpu.runs(boot_id="boot-2")
    assert sweep(world).repaired == 1
    attempt, job = Attempt.objects.get(), Job.objects.get()
    assert (attempt.state, attempt.slot_freed) == (AttemptState.LOST, True)
    assert attempt.evidence == "the server restarted"
    assert (job.state, job.deaths, job.avoid_server) == (JobState.RETRYING, 0, "gpu-1")
    assert not QuarantinedSlot.objects.exists()
    assert world.slot() == "free"


def test_an_expired_run_of_an_earlier_boot_is_lost(
    world: QueueWorld, gpu: HealthServer, lease: Lease
) -> None:
    world.clock.advance(LEASE_SECONDS + 1)
    gpu.runs(boot_id="boot-2")
    assert sweep(world).repaired == 1
    assert world.slot() == "free"


def test_a_run_sent_after_the_last_answer_of_the_old_boot_is_kept(
    world: QueueWorld, gpu: HealthServer, lease: Lease
) -> None:
    Attempt.objects.update(started_at=world.clock.now())
    Server.objects.update(checked_at=world.clock._now.replace(year=2020))
    world.release(lease, ReleaseMode.ADOPT)
    gpu.runs(lease.attempt_id, boot_id="boot-2")
    assert sweep(world).repaired == 0
    assert Attempt.objects.get().state == AttemptState.WAITING


def held_back(world: QueueWorld, lease: Lease) -> None:
    """A proof was committed, and the process died before it wrote to Redis."""
    world.release(lease, ReleaseMode.SUSPECT)
    ending = Ending(RunTimedOut(), suspect=True)
    transitions.end_attempt(
        End(lease.job_id, lease.attempt_id, 1, lease.slot, ending, RetryPolicy(), world.clock.now())
    )
    world.leases.confirm_ends([lease.ref])


def test_a_slot_that_only_redis_holds_back_is_freed(
    world: QueueWorld, gpu: HealthServer, lease: Lease
) -> None:
    held_back(world, lease)
    QuarantinedSlot.objects.update(freed_at=world.clock.now())
    assert sweep(world).repaired == 0, "its row may not be committed yet"
    world.clock.advance(21)
    assert sweep(world).repaired == 1
    assert world.slot() == "free"


def test_a_hold_with_a_quarantine_row_stays(world: QueueWorld, gpu: HealthServer, lease: Lease) -> None:
    held_back(world, lease)
    sweep(world)
    world.clock.advance(21)
    assert sweep(world).repaired == 0
    assert world.slot() == "quarantined"


def test_a_hold_without_a_row_or_a_proof_gets_a_row(
    world: QueueWorld, gpu: HealthServer, lease: Lease
) -> None:
    held_back(world, lease)
    QuarantinedSlot.objects.all().delete()
    sweep(world)
    world.clock.advance(21)
    assert sweep(world).repaired == 1
    assert QuarantinedSlot.objects.get(freed_at=None).attempt_id == lease.attempt_id
    assert world.slot() == "quarantined"


def test_a_hold_with_a_live_attempt_is_left_to_the_orphans_sweep(
    world: QueueWorld, gpu: HealthServer, lease: Lease
) -> None:
    world.clock.advance(LEASE_SECONDS + 1)
    assert world.leases.resolve_expired(lease.ref, ExpiryVerdict.QUARANTINED)
    sweep(world)
    world.clock.advance(21)
    assert sweep(world).repaired == 0
    assert world.slot() == "quarantined"


def test_without_redis_servers_are_still_probed(world: QueueWorld, gpu: HealthServer, lease: Lease) -> None:
    world.redis_is_gone = True
    gpu.status = 500
    count = sweep(world)
    assert Server.objects.get().healthy is False
    assert any("Redis does not answer" in note for note in count.notes)


def test_a_restart_seen_without_redis_is_handled_later(
    world: QueueWorld, gpu: HealthServer, lease: Lease
) -> None:
    world.release(lease, ReleaseMode.ADOPT)
    gpu.runs(boot_id="boot-2")
    world.redis_is_gone = True
    assert sweep(world).repaired == 0
    world.redis_is_gone = False
    assert sweep(world).repaired == 1
    assert Server.objects.get().boot_id == "boot-2"
    assert sweep(world).repaired == 0
