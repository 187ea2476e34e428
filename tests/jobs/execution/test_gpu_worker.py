"""One job's whole path through a worker: real Valkey, a real GPU server, a real database."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from gpus.models import QuarantinedSlot
from gpus.runners.transport import SMALL_VALUES
from jobs.domain.states import AttemptState, JobState
from jobs.execution.gpu_worker import GpuWorker
from jobs.models import Attempt, Job
from jobs.operations.jobs import cancel_job
from tests.support.fakes import make_ports
from tests.support.system.gates import open_gate
from tests.support.waiting import wait_for
from tests.support.worker_harness import state

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_sync_job_completes(harness):
    job = harness.submit({"seconds": 0.01, "echo": 1})
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.COMPLETED)
    job.refresh_from_db()
    attempt = Attempt.objects.get(job=job)
    assert (attempt.state, attempt.server, attempt.slot) == (AttemptState.COMPLETED, "gpu-1", 0)
    assert job.result is not None
    wait_for(lambda: harness.leases.slots("gpu-1")[0].state == "free")


def test_a_large_result_is_stored_like_any_other(harness):
    numbers = [0.5] * 2 * SMALL_VALUES
    job = harness.submit({"seconds": 0.01, "echo": numbers})
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.COMPLETED)
    job.refresh_from_db()
    assert job.result["echo"] == numbers


@pytest.mark.parametrize("harness", [{"mode": "async"}], indirect=True)
def test_an_async_job_is_polled_to_its_end(harness):
    job = harness.submit({"seconds": 0.2})
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.COMPLETED)
    assert Attempt.objects.get(job=job).remote_id != ""


@pytest.mark.database
def test_one_thread_goes_straight_on_with_the_slot(harness, settings):
    settings.DISPATCHER = replace(settings.DISPATCHER, hand_back_seconds=60.0)
    jobs = [harness.submit({"seconds": 0.01}) for _ in range(20)]
    reports = harness.worker().work("m")
    wait_for(lambda: all(state(job) == JobState.COMPLETED for job in jobs))
    assert [report.job_id for report in reports] == [job.id for job in jobs]


def test_a_busy_server_rests_and_the_job_keeps_its_place_at_no_cost(harness):
    job = harness.submit({"fault": "503", "retry_after": 600})
    harness.worker().work("m")
    wait_for(lambda: Attempt.objects.filter(job=job, state=AttemptState.REFUSED).exists())
    wait_for(lambda: harness.leases.slots("gpu-1")[0].resting)
    job.refresh_from_db()
    assert (job.state, job.tries) == (JobState.QUEUED, 0)
    wait_for(lambda: harness.leases.has_tickets("m", [job.ticket]) == [True])


def test_a_failing_server_costs_a_try(harness):
    job = harness.submit({"fault": "500"})
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.RETRYING)
    job.refresh_from_db()
    assert job.tries == 1


def test_a_broken_connection_quarantines_the_slot(harness):
    job = harness.submit({"fault": "drop_reply", "seconds": 0.05})
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.RETRYING)
    assert QuarantinedSlot.objects.filter(server="gpu-1", slot=0, freed_at=None).exists()
    wait_for(lambda: harness.leases.slots("gpu-1")[0].state == "quarantined")


@pytest.mark.database
def test_a_cancel_reaches_the_gpu_and_ends_the_job(harness):
    job = harness.submit({"seconds": 30})
    worker = harness.worker()
    thread = harness.work(worker)
    wait_for(lambda: state(job) == JobState.RUNNING)
    wait_for(lambda: harness.node.health()["active_jobs"] == 1)
    cancel_job(job.id, ports=harness.ports)
    worker.nudge([job.id])
    wait_for(lambda: state(job) == JobState.CANCELLED)
    thread.join(5)
    assert harness.node.health()["active_jobs"] == 0
    assert Attempt.objects.get(job=job).evidence


@pytest.mark.database
@pytest.mark.parametrize(
    "harness", [{"mode": "async", "handler": "tests.support.system.gates:run"}], indirect=True
)
def test_a_deploy_hands_the_run_over_and_the_gpu_runs_it_once(harness):
    job = harness.submit({"gate": "handed over"})
    first, second = harness.worker(), harness.worker()
    thread = harness.work(first)
    wait_for(lambda: Attempt.objects.filter(job=job, state=AttemptState.WAITING).exists())
    first.drain()
    thread.join(30)
    assert not thread.is_alive()
    harness.work(second)
    wait_for(lambda: Attempt.objects.filter(job=job, epoch=2).exists())
    open_gate("handed over")
    wait_for(lambda: state(job) == JobState.COMPLETED)
    attempt = Attempt.objects.get(job=job)
    assert attempt.epoch == 2
    assert attempt.worker == second.name
    assert len(harness.node.runs()) == 1


@pytest.mark.database
def test_a_thread_whose_hand_back_is_lost_keeps_claiming_behind_the_group_commit(harness, settings):
    settings.DISPATCHER = replace(settings.DISPATCHER, hand_back_seconds=0.0)
    harness.ports = make_ports(harness.leases, clock=harness.ports.clock, calls=harness.calls, wake=False)
    jobs = [harness.submit({"seconds": 0.05}) for _ in range(3)]
    assert [report.job_id for report in harness.worker().work("m")] == [job.id for job in jobs]


def test_a_ticket_of_a_job_that_was_cancelled_meanwhile_runs_nothing(harness):
    job = harness.submit({"seconds": 30})
    worker = harness.worker()
    Job.objects.filter(id=job.id).update(state=JobState.CANCELLED, finished_at=harness.ports.clock.now())
    worker.work("m")
    assert harness.node.health()["active_jobs"] == 0
    wait_for(lambda: harness.leases.slots("gpu-1")[0].state == "free")
    assert Attempt.objects.count() == 0


def test_at_most_once_is_failed_after_a_broken_connection(harness):
    from gpus.models import ModelConfig

    config = ModelConfig.objects.get(name="m")
    config.at_most_once = True
    config.save()
    job = harness.submit({"fault": "drop_reply", "seconds": 0.05})
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.FAILED)
    job.refresh_from_db()
    assert job.error_code == "lost_at_most_once"


@pytest.mark.database
def test_two_workers_share_the_slots_and_no_job_runs_twice(harness):
    jobs = [harness.submit({"seconds": 0.02}) for _ in range(40)]
    workers = [harness.worker(), harness.worker()]

    def run_until_done(worker: GpuWorker) -> None:
        wait_for(lambda: (worker.work("m"), all(state(job) == JobState.COMPLETED for job in jobs))[1])

    threads = [threading.Thread(target=run_until_done, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert all(state(job) == JobState.COMPLETED for job in jobs)
    assert len(harness.node.runs()) == 40
    assert harness.node.health()["refused_503"] == 0
