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
from tests.support.queue_harness import LEASE_SECONDS, QueueHarness
from tests.support.servers.health_server import HealthServer


@pytest.fixture
def lease(queue: QueueHarness, gpu: HealthServer) -> Lease:
    queue.server(url=f"{gpu.url}/run")
    queue.job()
    lease = queue.claim()
    queue.accept(lease)
    gpu.runs(lease.attempt_id)
    sweep(queue)
    return lease


def sweep(queue: QueueHarness) -> SweepCount:
    count = run_sweep("lock_sync", queue.ports)
    assert count.failed == 0
    return count


def test_a_servers_health_is_written_to_its_row(queue: QueueHarness, gpu: HealthServer, lease: Lease) -> None:
    server = Server.objects.get()
    assert (server.healthy, server.boot_id, server.checked_at) == (True, "boot-1", queue.clock.now())
    gpu.status = 500
    count = sweep(queue)
    server.refresh_from_db()
    assert server.healthy is False
    assert "500" in server.last_error
    assert any("500" in note for note in count.notes)


def test_a_lease_that_the_server_does_not_confirm_is_noted_and_stays(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    gpu.runs()
    assert sweep(queue).notes == (), "the run may be about to arrive"
    queue.clock.advance(11)
    assert sweep(queue).notes == ("gpu-1: does not run 1 of its 1 leased attempts",)
    assert queue.leases.is_held(lease.ref)
    assert Attempt.objects.get().state == AttemptState.WAITING


def test_attempts_that_hold_no_slot_are_noted(queue: QueueHarness, gpu: HealthServer, lease: Lease) -> None:
    gpu.runs(lease.attempt_id, "foreign-run")
    assert sweep(queue).notes == ("gpu-1: runs 1 attempts that hold no slot",)


def test_a_polled_run_of_an_earlier_boot_is_left_to_its_worker(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    gpu.runs(boot_id="boot-2")
    assert sweep(queue).repaired == 0
    assert Job.objects.get().state == JobState.RUNNING
    assert queue.leases.is_held(lease.ref)


def test_an_adoptable_run_of_an_earlier_boot_is_lost_and_its_slot_free(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    queue.release(lease, ReleaseMode.ADOPT)
    gpu.runs(boot_id="boot-2")
    assert sweep(queue).repaired == 1
    attempt, job = Attempt.objects.get(), Job.objects.get()
    assert (attempt.state, attempt.slot_freed) == (AttemptState.LOST, True)
    assert attempt.evidence == "the server restarted"
    assert (job.state, job.deaths, job.avoid_server) == (JobState.RETRYING, 0, "gpu-1")
    assert not QuarantinedSlot.objects.exists()
    assert queue.slot() == "free"


def test_an_expired_run_of_an_earlier_boot_is_lost(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    queue.clock.advance(LEASE_SECONDS + 1)
    gpu.runs(boot_id="boot-2")
    assert sweep(queue).repaired == 1
    assert queue.slot() == "free"


def test_a_run_sent_after_the_last_answer_of_the_old_boot_is_kept(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    Attempt.objects.update(started_at=queue.clock.now())
    Server.objects.update(checked_at=queue.clock._now.replace(year=2020))
    queue.release(lease, ReleaseMode.ADOPT)
    gpu.runs(lease.attempt_id, boot_id="boot-2")
    assert sweep(queue).repaired == 0
    assert Attempt.objects.get().state == AttemptState.WAITING


def held_back(queue: QueueHarness, lease: Lease) -> None:
    """A proof was committed, and the process died before it wrote to Redis."""
    queue.release(lease, ReleaseMode.SUSPECT)
    ending = Ending(RunTimedOut(), suspect=True)
    transitions.end_attempt(
        End(lease.job_id, lease.attempt_id, 1, lease.slot, ending, RetryPolicy(), queue.clock.now())
    )
    queue.leases.confirm_ends([lease.ref])


def test_a_slot_that_only_redis_holds_back_is_freed(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    held_back(queue, lease)
    QuarantinedSlot.objects.update(freed_at=queue.clock.now())
    assert sweep(queue).repaired == 0, "its row may not be committed yet"
    queue.clock.advance(21)
    assert sweep(queue).repaired == 1
    assert queue.slot() == "free"


def test_a_hold_with_a_quarantine_row_stays(queue: QueueHarness, gpu: HealthServer, lease: Lease) -> None:
    held_back(queue, lease)
    sweep(queue)
    queue.clock.advance(21)
    assert sweep(queue).repaired == 0
    assert queue.slot() == "quarantined"


def test_a_hold_without_a_row_or_a_proof_gets_a_row(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    held_back(queue, lease)
    QuarantinedSlot.objects.all().delete()
    sweep(queue)
    queue.clock.advance(21)
    assert sweep(queue).repaired == 1
    assert QuarantinedSlot.objects.get(freed_at=None).attempt_id == lease.attempt_id
    assert queue.slot() == "quarantined"


def test_a_hold_with_a_live_attempt_is_left_to_the_orphans_sweep(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    queue.clock.advance(LEASE_SECONDS + 1)
    assert queue.leases.resolve_expired(lease.ref, ExpiryVerdict.QUARANTINED)
    sweep(queue)
    queue.clock.advance(21)
    assert sweep(queue).repaired == 0
    assert queue.slot() == "quarantined"


def test_without_redis_servers_are_still_probed(queue: QueueHarness, gpu: HealthServer, lease: Lease) -> None:
    queue.redis_is_gone = True
    gpu.status = 500
    count = sweep(queue)
    assert Server.objects.get().healthy is False
    assert any("Redis does not answer" in note for note in count.notes)


def test_a_restart_seen_without_redis_is_handled_later(
    queue: QueueHarness, gpu: HealthServer, lease: Lease
) -> None:
    queue.release(lease, ReleaseMode.ADOPT)
    gpu.runs(boot_id="boot-2")
    queue.redis_is_gone = True
    assert sweep(queue).repaired == 0
    queue.redis_is_gone = False
    assert sweep(queue).repaired == 1
    assert Server.objects.get().boot_id == "boot-2"
    assert sweep(queue).repaired == 0
