"""One job's whole path through a worker: real Valkey, a real GPU server, a real database."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from gpus.leasing.store import RedisLeases
from gpus.models import QuarantinedSlot
from gpus.node.config import NodeConfig
from gpus.node.server import Node
from gpus.protocol import SystemClock
from jobs.models import Attempt, Job
from jobs.services.finish import push_tickets
from jobs.services.operate import cancel_job
from jobs.services.ports import Ports
from jobs.services.worker import GpuWorker
from jobs.states import AttemptState, JobState
from tests.builders import Told, make_job, make_model, make_ports, make_server

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def eventually(look: Callable[[], Any], *, seconds: float = 15.0) -> Any:
    """The first true answer; fails if none comes."""
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)
    return found


@dataclass
class Shop:
    """A fleet with one model on one node, and workers made on demand."""

    leases: RedisLeases
    ports: Ports
    node: Node
    told: Told
    workers: list[GpuWorker]

    def worker(self) -> GpuWorker:
        worker = GpuWorker(self.ports)
        worker.start()
        self.workers.append(worker)
        return worker

    def submit(self, payload: dict[str, Any] | None = None, **values: Any) -> Job:
        job = make_job("m", at=self.ports.clock.now(), payload=payload or {}, **values)
        push_tickets("main", "m", [job.ticket], self.ports)
        return job

    def work(self, worker: GpuWorker) -> threading.Thread:
        thread = threading.Thread(target=worker.work, args=("m",), daemon=True)
        thread.start()
        return thread


@pytest.fixture
def shop(valkey, fleet, request) -> Iterator[Shop]:
    options = getattr(request, "param", {})
    slots, mode = options.get("slots", 1), options.get("mode", "sync")
    node = Node(NodeConfig(handler="gpus.node.simulator:run", slots=slots, port=0, mode=mode))
    node.start()
    model = make_model(
        "m",
        model_type=mode,
        poll_endpoint_template="/status/{id}" if mode == "async" else None,
        cancel_endpoint_template="/cancel/{job_id}",
        poll_interval=0.05,
    )
    server = make_server("gpu-1", model=model, endpoint=f"{node.url}/generate", slots=slots)
    told = Told()
    leases = RedisLeases(redis.Redis.from_url(valkey.url), fleet)
    assert leases.begin_rebuild("test")
    while not leases.wipe("test"):
        pass
    leases.open_generation("test")
    leases.configure_pool(model.pool.spec)
    leases.configure_server(server.spec())
    shop = Shop(leases, make_ports(leases, clock=SystemClock(), told=told), node, told, [])
    yield shop
    for worker in shop.workers:
        worker.interrupt()
        worker.stop(5)
    node.stop()


def state(job: Job) -> str:
    return Job.objects.values_list("state", flat=True).get(id=job.id)


def test_a_sync_job_completes(shop):
    job = shop.submit({"seconds": 0.01, "echo": 1})
    shop.worker().work("m")
    eventually(lambda: state(job) == JobState.COMPLETED)
    job.refresh_from_db()
    attempt = Attempt.objects.get(job=job)
    assert (attempt.state, attempt.server, attempt.slot) == (AttemptState.COMPLETED, "gpu-1", 0)
    assert job.result is not None
    eventually(lambda: shop.leases.slots("gpu-1")[0].state == "free")


@pytest.mark.parametrize("shop", [{"mode": "async"}], indirect=True)
def test_an_async_job_is_polled_to_its_end(shop):
    job = shop.submit({"seconds": 0.2})
    shop.worker().work("m")
    eventually(lambda: state(job) == JobState.COMPLETED)
    assert Attempt.objects.get(job=job).remote_id != ""


def test_one_thread_goes_straight_on_with_the_slot(shop):
    jobs = [shop.submit({"seconds": 0.01}) for _ in range(20)]
    reports = shop.worker().work("m")
    eventually(lambda: all(state(job) == JobState.COMPLETED for job in jobs))
    assert [report.job_id for report in reports] == [job.id for job in jobs]


def test_a_busy_server_rests_and_the_job_keeps_its_place_at_no_cost(shop):
    job = shop.submit({"seconds": 0.01, "fault": "503"})
    shop.worker().work("m")
    eventually(lambda: Attempt.objects.filter(job=job, state=AttemptState.REFUSED).exists())
    eventually(lambda: shop.leases.slots("gpu-1")[0].resting)
    job.refresh_from_db()
    assert (job.state, job.tries) == (JobState.QUEUED, 0)
    eventually(lambda: shop.leases.has_tickets("m", [job.ticket]) == [True])


def test_a_failing_server_costs_a_try(shop):
    job = shop.submit({"fault": "500"})
    shop.worker().work("m")
    eventually(lambda: state(job) == JobState.RETRYING)
    job.refresh_from_db()
    assert job.tries == 1


def test_a_broken_connection_quarantines_the_slot(shop):
    job = shop.submit({"fault": "drop_reply", "seconds": 0.05})
    shop.worker().work("m")
    eventually(lambda: state(job) == JobState.RETRYING)
    assert QuarantinedSlot.objects.filter(server="gpu-1", slot=0, freed_at=None).exists()
    eventually(lambda: shop.leases.slots("gpu-1")[0].state == "quarantined")


def test_a_cancel_reaches_the_gpu_and_ends_the_job(shop):
    job = shop.submit({"seconds": 30})
    worker = shop.worker()
    thread = shop.work(worker)
    eventually(lambda: state(job) == JobState.RUNNING)
    eventually(lambda: shop.node.health()["active_jobs"] == 1)
    cancel_job(job.id, ports=shop.ports)
    worker.nudge([job.id])
    eventually(lambda: state(job) == JobState.CANCELLED)
    thread.join(5)
    assert shop.node.health()["active_jobs"] == 0
    assert Attempt.objects.get(job=job).evidence


@pytest.mark.parametrize("shop", [{"mode": "async"}], indirect=True)
def test_a_deploy_hands_the_run_over_and_the_gpu_runs_it_once(shop):
    job = shop.submit({"seconds": 1.0})
    first, second = shop.worker(), shop.worker()
    thread = shop.work(first)
    eventually(lambda: Attempt.objects.filter(job=job, state=AttemptState.WAITING).exists())
    first.drain()
    thread.join(5)
    assert not thread.is_alive()
    second.work("m")
    eventually(lambda: state(job) == JobState.COMPLETED)
    attempt = Attempt.objects.get(job=job)
    assert attempt.epoch == 2
    assert attempt.worker == second.name
    assert len(shop.node.runs()) == 1


def test_a_start_that_the_database_refuses_stops_its_run(shop):
    """The client cancels between the claim and the commit of the start."""
    job = shop.submit({"seconds": 30})
    worker = shop.worker()
    Job.objects.filter(id=job.id).update(state=JobState.CANCELLED, finished_at=shop.ports.clock.now())
    worker.work("m")
    assert shop.node.health()["active_jobs"] == 0
    eventually(lambda: shop.leases.slots("gpu-1")[0].state == "free")
    assert Attempt.objects.count() == 0


def test_at_most_once_is_failed_after_a_broken_connection(shop):
    from gpus.models import ModelConfig

    config = ModelConfig.objects.get(name="m")
    config.at_most_once = True
    config.save()
    job = shop.submit({"fault": "drop_reply", "seconds": 0.05})
    shop.worker().work("m")
    eventually(lambda: state(job) == JobState.FAILED)
    job.refresh_from_db()
    assert job.error_code == "lost_at_most_once"


def test_two_workers_share_the_slots_and_no_job_runs_twice(shop):
    jobs = [shop.submit({"seconds": 0.02}) for _ in range(40)]
    workers = [shop.worker(), shop.worker()]

    def run_until_done(worker: GpuWorker) -> None:
        eventually(lambda: (worker.work("m"), all(state(job) == JobState.COMPLETED for job in jobs))[1])

    threads = [threading.Thread(target=run_until_done, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(state(job) == JobState.COMPLETED for job in jobs)
    assert len(shop.node.runs()) == 40
    assert shop.node.health()["refused_503"] == 0
