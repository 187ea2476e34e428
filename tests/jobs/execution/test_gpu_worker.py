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
from tests.support.shop import state
from tests.support.system.gates import open_gate
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_sync_job_completes(shop):
    job = shop.submit({"seconds": 0.01, "echo": 1})
    shop.worker().work("m")
    wait_for(lambda: state(job) == JobState.COMPLETED)
    job.refresh_from_db()
    attempt = Attempt.objects.get(job=job)
    assert (attempt.state, attempt.server, attempt.slot) == (AttemptState.COMPLETED, "gpu-1", 0)
    assert job.result is not None
    wait_for(lambda: shop.leases.slots("gpu-1")[0].state == "free")


def test_a_large_result_is_stored_like_any_other(shop):
    numbers = [0.5] * 2 * SMALL_VALUES
    job = shop.submit({"seconds": 0.01, "echo": numbers})
    shop.worker().work("m")
    wait_for(lambda: state(job) == JobState.COMPLETED)
    job.refresh_from_db()
    assert job.result["echo"] == numbers


@pytest.mark.parametrize("shop", [{"mode": "async"}], indirect=True)
def test_an_async_job_is_polled_to_its_end(shop):
    job = shop.submit({"seconds": 0.2})
    shop.worker().work("m")
    wait_for(lambda: state(job) == JobState.COMPLETED)
    assert Attempt.objects.get(job=job).remote_id != ""


@pytest.mark.database
def test_one_thread_goes_straight_on_with_the_slot(shop, settings):
    settings.DISPATCHER = replace(settings.DISPATCHER, hand_back_seconds=60.0)
    jobs = [shop.submit({"seconds": 0.01}) for _ in range(20)]
    reports = shop.worker().work("m")
    wait_for(lambda: all(state(job) == JobState.COMPLETED for job in jobs))
    assert [report.job_id for report in reports] == [job.id for job in jobs]


def test_a_busy_server_rests_and_the_job_keeps_its_place_at_no_cost(shop):
    job = shop.submit({"fault": "503", "retry_after": 600})
    shop.worker().work("m")
    wait_for(lambda: Attempt.objects.filter(job=job, state=AttemptState.REFUSED).exists())
    wait_for(lambda: shop.leases.slots("gpu-1")[0].resting)
    job.refresh_from_db()
    assert (job.state, job.tries) == (JobState.QUEUED, 0)
    wait_for(lambda: shop.leases.has_tickets("m", [job.ticket]) == [True])


def test_a_failing_server_costs_a_try(shop):
    job = shop.submit({"fault": "500"})
    shop.worker().work("m")
    wait_for(lambda: state(job) == JobState.RETRYING)
    job.refresh_from_db()
    assert job.tries == 1


def test_a_broken_connection_quarantines_the_slot(shop):
    job = shop.submit({"fault": "drop_reply", "seconds": 0.05})
    shop.worker().work("m")
    wait_for(lambda: state(job) == JobState.RETRYING)
    assert QuarantinedSlot.objects.filter(server="gpu-1", slot=0, freed_at=None).exists()
    wait_for(lambda: shop.leases.slots("gpu-1")[0].state == "quarantined")


@pytest.mark.database
def test_a_cancel_reaches_the_gpu_and_ends_the_job(shop):
    job = shop.submit({"seconds": 30})
    worker = shop.worker()
    thread = shop.work(worker)
    wait_for(lambda: state(job) == JobState.RUNNING)
    wait_for(lambda: shop.node.health()["active_jobs"] == 1)
    cancel_job(job.id, ports=shop.ports)
    worker.nudge([job.id])
    wait_for(lambda: state(job) == JobState.CANCELLED)
    thread.join(5)
    assert shop.node.health()["active_jobs"] == 0
    assert Attempt.objects.get(job=job).evidence


@pytest.mark.database
@pytest.mark.parametrize(
    "shop", [{"mode": "async", "handler": "tests.support.system.gates:run"}], indirect=True
)
def test_a_deploy_hands_the_run_over_and_the_gpu_runs_it_once(shop):
    job = shop.submit({"gate": "handed over"})
    first, second = shop.worker(), shop.worker()
    thread = shop.work(first)
    wait_for(lambda: Attempt.objects.filter(job=job, state=AttemptState.WAITING).exists())
    first.drain()
    thread.join(30)
    assert not thread.is_alive()
    shop.work(second)
    wait_for(lambda: Attempt.objects.filter(job=job, epoch=2).exists())
    open_gate("handed over")
    wait_for(lambda: state(job) == JobState.COMPLETED)
    attempt = Attempt.objects.get(job=job)
    assert attempt.epoch == 2
    assert attempt.worker == second.name
    assert len(shop.node.runs()) == 1


@pytest.mark.database
def test_a_thread_whose_hand_back_is_lost_keeps_claiming_behind_the_group_commit(shop, settings):
    settings.DISPATCHER = replace(settings.DISPATCHER, hand_back_seconds=0.0)
    shop.ports = make_ports(shop.leases, clock=shop.ports.clock, told=shop.told, wake=False)
    jobs = [shop.submit({"seconds": 0.05}) for _ in range(3)]
    assert [report.job_id for report in shop.worker().work("m")] == [job.id for job in jobs]


def test_a_ticket_of_a_job_that_was_cancelled_meanwhile_runs_nothing(shop):
    job = shop.submit({"seconds": 30})
    worker = shop.worker()
    Job.objects.filter(id=job.id).update(state=JobState.CANCELLED, finished_at=shop.ports.clock.now())
    worker.work("m")
    assert shop.node.health()["active_jobs"] == 0
    wait_for(lambda: shop.leases.slots("gpu-1")[0].state == "free")
    assert Attempt.objects.count() == 0


def test_at_most_once_is_failed_after_a_broken_connection(shop):
    from gpus.models import ModelConfig

    config = ModelConfig.objects.get(name="m")
    config.at_most_once = True
    config.save()
    job = shop.submit({"fault": "drop_reply", "seconds": 0.05})
    shop.worker().work("m")
    wait_for(lambda: state(job) == JobState.FAILED)
    job.refresh_from_db()
    assert job.error_code == "lost_at_most_once"


@pytest.mark.database
def test_two_workers_share_the_slots_and_no_job_runs_twice(shop):
    jobs = [shop.submit({"seconds": 0.02}) for _ in range(40)]
    workers = [shop.worker(), shop.worker()]

    def run_until_done(worker: GpuWorker) -> None:
        wait_for(lambda: (worker.work("m"), all(state(job) == JobState.COMPLETED for job in jobs))[1])

    threads = [threading.Thread(target=run_until_done, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert all(state(job) == JobState.COMPLETED for job in jobs)
    assert len(shop.node.runs()) == 40
    assert shop.node.health()["refused_503"] == 0
