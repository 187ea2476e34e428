"""A test harness of GPU workers: one model on one GPU server, and workers that a test starts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import redis

from gpu_host.node.server import Node
from gpus.leasing.store import RedisLeases
from gpus.models import ModelConfig
from gpus.protocol import SystemClock
from jobs.execution.follow_ups import push_tickets
from jobs.execution.gpu_worker import GpuWorker
from jobs.models import Job
from jobs.ports import Ports
from tests.support.factories import make_job, make_model, make_server
from tests.support.fakes import PortCalls, make_ports
from tests.support.servers.plain_server import PlainServer


@dataclass
class WorkerHarness:
    """A fleet with one model on one node, and the workers that a test starts."""

    leases: RedisLeases
    ports: Ports
    node: Any
    calls: PortCalls
    workers: list[GpuWorker]

    def worker(self, **parts: Any) -> GpuWorker:
        """parts: ports in place of the harness's."""
        worker = GpuWorker(replace(self.ports, **parts))
        worker.start()
        self.workers.append(worker)
        return worker

    def close(self) -> None:
        """Stop the workers. The node is closed by the fixture that started it."""
        for worker in self.workers:
            worker.interrupt()
            worker.stop(30)

    def submit(self, payload: dict[str, Any] | None = None, **values: Any) -> Job:
        job = make_job("m", at=self.ports.clock.now(), payload=payload or {}, **values)
        push_tickets("main", "m", [job.ticket], self.ports)
        return job

    def work(self, worker: GpuWorker) -> threading.Thread:
        thread = threading.Thread(target=worker.work, args=("m",), daemon=True)
        thread.start()
        return thread


def state(job: Job) -> str:
    return Job.objects.values_list("state", flat=True).get(id=job.id)


def make_harness(
    redis_url: str, fleet: str, model: ModelConfig, endpoint: str, *, slots: int = 1, node: Node | None = None
) -> WorkerHarness:
    """The model on one server, `gpu-1`, in an index that is whole."""
    server = make_server("gpu-1", model=model, endpoint=endpoint, slots=slots)
    calls = PortCalls()
    leases = RedisLeases(redis.Redis.from_url(redis_url), fleet)
    assert leases.begin_rebuild("test")
    while not leases.wipe("test"):
        pass
    leases.open_generation("test")
    leases.configure_pool(model.pool.spec)
    leases.configure_server(server.spec())
    return WorkerHarness(leases, make_ports(leases, clock=SystemClock(), calls=calls), node, calls, [])


@contextmanager
def plain_server_harness(
    redis_url: str, fleet: str, plain: PlainServer, *, slots: int = 1
) -> Iterator[WorkerHarness]:
    """On a plain server whose runs wait at the gate `a`, which is open in the end."""
    model = make_model("m", max_run_seconds=300.0)
    harness = make_harness(redis_url, fleet, model, f"{plain.url}/run", slots=slots)
    yield harness
    plain.open("a")
    harness.close()
