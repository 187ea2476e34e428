"""Circuit breakers with real workers and GPU servers: one that fails repeatedly rests, others take its
work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import requests

from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from gpus.leasing.store import RedisLeases
from gpus.leasing.values import CircuitRules
from gpus.protocol import CircuitKind, CircuitState
from jobs.domain.states import JobState
from jobs.execution.gpu_worker import GpuWorker
from jobs.models import Attempt, Job
from tests.support.factories import make_server
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, state

pytestmark = pytest.mark.django_db(transaction=True)

RULES = CircuitRules(failures=3, rest_seconds=600.0)
JOBS = 12


@pytest.fixture
def second(harness: WorkerHarness) -> Iterator[Node]:
    """Another server of the same model; three failures open a circuit, for longer than a test."""
    node = Node(NodeConfig(handler="gpu_host.node.simulator:run", slots=1, port=0))
    node.start()
    from gpus.models import ModelConfig

    server = make_server("gpu-2", model=ModelConfig.objects.get(name="m"), endpoint=f"{node.url}/generate")
    harness.leases = RedisLeases(harness.leases._scripts._client, harness.leases.fleet, circuit_rules=RULES)
    harness.leases.configure_server(server.spec())
    harness.ports = replace(harness.ports, leases=lambda fleet: harness.leases)
    yield node
    node.stop()


def break_down(*nodes: Node) -> None:
    for node in nodes:
        answer = requests.post(f"{node.url}/faults", json={"fault": "500", "seconds": 600}, timeout=5)
        assert answer.ok


def work_out(worker: GpuWorker) -> None:
    """Until no job may run, and all ends are committed: between two commits no job may be
    RUNNING while ends are still queued."""
    while worker.work("m"):
        pass
    worker.completion.writer.submit(lambda: None).result()


def test_the_other_server_takes_the_work(harness: WorkerHarness, second: Node) -> None:
    break_down(harness.node)
    jobs = [harness.submit({"seconds": 0.001}) for _ in range(JOBS)]
    work_out(harness.worker())
    wait_for(lambda: not Job.objects.filter(state=JobState.RUNNING).exists())
    assert Attempt.objects.filter(server="gpu-1").count() == RULES.failures
    assert [state(job) for job in jobs].count(JobState.COMPLETED) == JOBS - RULES.failures
    found = harness.leases.circuits("m", ["gpu-1", "gpu-2"])
    assert {name: one.state for name, one in found.servers.items()} == {"gpu-1": CircuitState.OPEN}
    assert not found.models


def test_a_model_that_fails_on_every_server_stops_using_up_its_queue(
    harness: WorkerHarness, second: Node
) -> None:
    break_down(harness.node, second)
    jobs = [harness.submit({"seconds": 0.001}) for _ in range(JOBS)]
    work_out(harness.worker())
    wait_for(lambda: not Job.objects.filter(state=JobState.RUNNING).exists())
    burnt = Attempt.objects.count()
    assert RULES.failures <= burnt <= 2 * RULES.failures
    untouched = Job.objects.filter(id__in=[job.id for job in jobs], state=JobState.QUEUED, tries=0)
    assert untouched.count() == JOBS - burnt
    assert harness.leases.circuits("m", []).models["m"].state is CircuitState.OPEN
    requests.delete(f"{harness.node.url}/faults", timeout=5)
    requests.delete(f"{second.url}/faults", timeout=5)
    harness.leases.reset_circuit(CircuitKind.MODEL, "m", "m")
    work_out(harness.worker())
    wait_for(lambda: Job.objects.filter(state=JobState.COMPLETED).count() == JOBS - burnt)
