"""A living worker goes on with its runs however long Redis is away: no attempt is LOST, no death is
counted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from gpus.leasing.contract import Leases
from gpus.protocol import Lease
from gpus.runners.base import Accepted
from jobs.domain.states import AttemptState, JobState
from jobs.execution.claiming import Claimed
from jobs.execution.gpu_worker import GpuWorker
from jobs.models import Attempt, Job, WorkerSign
from jobs.sweeps import expired_leases, retention
from tests.jobs.execution.by_hand import OVER, Gpu, HandProcess, HandWriter, run_claimed
from tests.support.queue_harness import LEASE_SECONDS, NoRedis, QueueHarness, queue

__all__ = ["queue"]

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Cut:
    """A worker whose connection to Redis can be cut; sweeps keep theirs, and all reach the database."""

    queue: QueueHarness
    worker: GpuWorker
    gpu: Gpu
    is_cut: bool = False

    def seconds(self, count: float) -> None:
        """Each with a round of the worker's threads and of the sweep."""
        for _ in range(round(count)):
            self.queue.clock.advance(1)
            self.worker.completion.keeper.step(self.queue.clock.monotonic())
            self.worker.watch()
            expired_leases.sweep(self.queue.ports)

    def outage(self, seconds: float) -> None:
        self.is_cut = True
        self.seconds(seconds)
        self.is_cut = False
        self.seconds(7)

    def claim(self) -> Claimed:
        claimed = self.worker.claims.claim_next(self.queue.fleet, "m", None)
        assert claimed is not None
        return claimed

    def dies(self, seconds: float) -> None:
        """Nothing of it moves any more."""
        for _ in range(round(seconds)):
            self.queue.clock.advance(1)
            expired_leases.sweep(self.queue.ports)


@pytest.fixture
def cut(queue: QueueHarness) -> Cut:
    queue.server()
    made: list[Cut] = []

    def leases_of(fleet: str) -> Leases:
        return cast(Leases, NoRedis()) if made and made[0].is_cut else queue.ports.leases(fleet)

    gpu = Gpu(cast(Any, queue.clock))
    queue.clock.move = queue.clock.advance  # type: ignore[attr-defined]
    ports = replace(queue.ports, leases=leases_of)
    process = HandProcess(ports.transport, name="w1", runners=lambda spec: gpu)
    worker = GpuWorker(ports, process, writer=HandWriter)
    writer = cast(HandWriter, worker.completion.writer)
    process.on_await, process.on_wait = writer.commit, lambda seconds: None
    made.append(Cut(queue, worker, gpu))
    return made[0]


def attempt_of(claimed: Claimed) -> Attempt:
    return Attempt.objects.get(id=claimed.lease.attempt_id)


def lose(cut: Cut, claimed: Claimed) -> Lease:
    """Lets go of the lease, as of one that can't be settled."""
    cut.worker.completion.keeper.forget(claimed.lease.ref)
    return claimed.lease


def test_three_outages_longer_than_a_lease_cost_a_living_worker_s_job_nothing(cut: Cut) -> None:
    job = cut.queue.job()
    claimed = cut.claim()
    for _ in range(3):
        cut.outage(3 * LEASE_SECONDS)
        job.refresh_from_db()
        assert (job.state, job.deaths, attempt_of(claimed).state) == ("running", 0, AttemptState.SENT)
        assert cut.queue.slot() == "leased"
    run_claimed(cut.worker, OVER, claimed)
    job.refresh_from_db()
    assert (job.state, job.attempts_made) == (JobState.COMPLETED, 1)


def test_a_run_that_ends_while_its_worker_is_cut_off_counts(cut: Cut) -> None:
    job = cut.queue.job()

    def cut_off(run: object) -> None:
        cut.is_cut = True
        cut.seconds(2 * LEASE_SECONDS)

    cut.gpu.on_start = cut_off
    run_claimed(cut.worker, OVER, cut.claim())
    job.refresh_from_db()
    assert (job.state, job.attempts_made) == (JobState.COMPLETED, 1)
    cut.seconds(2 * LEASE_SECONDS)
    assert cut.queue.slot() == "free", "its end is committed: the sweep settles it"


def test_a_polled_run_is_not_adopted_from_a_living_worker(cut: Cut) -> None:
    cut.gpu.answers = [Accepted("r1")]
    cut.queue.job()
    claimed = cut.claim()
    cut.queue.accept(claimed.lease)
    cut.outage(2 * LEASE_SECONDS)
    assert (attempt_of(claimed).epoch, cut.queue.slot()) == (1, "leased")


def test_a_start_that_is_not_committed_is_kept_too(cut: Cut) -> None:
    writer = cast(HandWriter, cut.worker.completion.writer)
    cut.queue.job()
    claimed = cut.claim()
    Attempt.objects.all().delete()
    Job.objects.update(state=JobState.QUEUED, live_attempt=None)
    writer.at_once = True
    cut.outage(2 * LEASE_SECONDS)
    assert cut.queue.slot() == "leased"
    assert not Attempt.objects.filter(id=claimed.lease.attempt_id).exists()


def test_a_lease_that_a_rebuild_restored_without_its_worker_is_kept(cut: Cut) -> None:
    cut.queue.job()
    claimed = cut.claim()
    cut.is_cut = True
    cut.seconds(3)
    cut.queue.flush()
    assert cut.queue.leases.begin_rebuild("test")
    assert cut.queue.leases.wipe("test")
    assert cut.queue.leases.restore_lease(claimed.lease)
    cut.queue.leases.open_generation("test")
    cut.seconds(3 * LEASE_SECONDS)
    assert (attempt_of(claimed).state, cut.queue.slot()) == (AttemptState.SENT, "leased")


def test_a_worker_that_dies_while_it_is_cut_off_is_detected(cut: Cut) -> None:
    job = cut.queue.job()
    claimed = cut.claim()
    cut.is_cut = True
    cut.seconds(2 * LEASE_SECONDS)
    cut.dies(2 * LEASE_SECONDS)
    job.refresh_from_db()
    assert (attempt_of(claimed).state, job.deaths) == (AttemptState.LOST, 1)


def test_heartbeats_do_not_delay_the_detection_of_a_death(cut: Cut) -> None:
    """Its last sign is older than any lease it could renew."""
    job = cut.queue.job()
    claimed = cut.claim()
    cut.seconds(8)
    cut.dies(LEASE_SECONDS + 1)
    job.refresh_from_db()
    assert (attempt_of(claimed).state, job.deaths) == (AttemptState.LOST, 1)
    assert attempt_of(claimed).error_message == expired_leases.GONE


def test_an_expired_lease_that_a_living_worker_does_not_hold_is_lost_and_no_death(cut: Cut) -> None:
    job = cut.queue.job()
    claimed = cut.claim()
    cut.seconds(6)
    lose(cut, claimed)
    cut.seconds(LEASE_SECONDS + 2)
    job.refresh_from_db()
    assert (attempt_of(claimed).state, job.deaths) == (AttemptState.LOST, 0)
    assert attempt_of(claimed).error_message == expired_leases.NOT_HELD


def test_an_idle_worker_writes_no_heartbeat_and_a_stopped_one_leaves_no_row(cut: Cut) -> None:
    cut.seconds(10)
    assert not WorkerSign.objects.exists()
    cut.queue.job()
    cut.claim()
    cut.seconds(1)
    assert WorkerSign.objects.get().worker == "w1"
    cut.worker.stop(1)
    assert not WorkerSign.objects.exists()


def test_the_heartbeat_of_a_dead_worker_is_deleted_after_a_day(queue: QueueHarness) -> None:
    WorkerSign.objects.create(worker="gone", at=queue.clock.now())
    retention.sweep(queue.ports)
    assert WorkerSign.objects.exists()
    queue.clock.advance(86_401)
    retention.sweep(queue.ports)
    assert not WorkerSign.objects.exists()


def test_a_heartbeat_from_far_ahead_does_not_count(cut: Cut) -> None:
    """A wrong clock would let a dead worker live for as long as it was ahead."""
    job = cut.queue.job()
    claimed = cut.claim()
    cut.queue.clock.advance(300)
    cut.worker.heartbeats.write_if_due()
    cut.queue.clock.advance(-300)
    cut.dies(LEASE_SECONDS + 1)
    job.refresh_from_db()
    assert (attempt_of(claimed).state, job.deaths) == (AttemptState.LOST, 1)
    assert attempt_of(claimed).error_message == expired_leases.GONE
