"""Nodes near an earlier one, on two GPU servers: their jobs go where its files are, if that is idle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node as GpuNode
from gpus.models import ModelConfig
from jobs.execution.follow_ups import push_tickets
from jobs.models import Attempt, Job
from tests.support.factories import make_job, make_server
from tests.support.waiting import wait_for
from tests.workflows.workflow_harness import WorkflowHarness, model
from verification.workflow_laws import check_runs
from workflows.domain.states import RunState
from workflows.models import Node, Run
from workflows.operations.answers import answer_wait

pytestmark = pytest.mark.django_db(transaction=True)
SLOTS = {"gpu-1": 4, "gpu-2": 1}


@pytest.fixture
def servers(harness: WorkflowHarness) -> Iterator[WorkflowHarness]:
    """A second server beside gpu-1; the model is loaded in every slot, so that nothing else prefers one."""
    node = GpuNode(
        NodeConfig(handler="gpu_host.node.simulator:run", slots=1, port=0, cancel_wait_seconds=4.0)
    )
    node.start()
    server = make_server("gpu-2", model=ModelConfig.objects.get(name="m"), endpoint=f"{node.url}/generate")
    harness.worker_harness.leases.configure_server(server.spec())
    jobs = [submit(harness, seconds=0.5) for _ in range(sum(SLOTS.values()))]
    threads = [harness.worker_harness.work(harness.worker) for _ in jobs]
    wait_for(lambda: not Job.objects.exclude(state="completed").exists())
    for thread in threads:
        thread.join(30)
    assert set(Attempt.objects.values_list("server", flat=True)) == set(SLOTS)
    yield harness
    for worker in harness.worker_harness.workers:
        worker.interrupt()
        worker.stop(30)
    node.stop()


def submit(harness: WorkflowHarness, *, seconds: float, near: str | None = None) -> Job:
    job = make_job("m", at=harness.ports.clock.now(), payload={"seconds": seconds}, near_server=near)
    push_tickets("main", "m", [job.ticket], harness.ports)
    return job


def chain(**more: Any) -> dict[str, Any]:
    return {
        "nodes": {
            "a": model(),
            "ask": {"human": {"title": "?", "choose_from": [1]}, "needs": ["a"]},
            "b": model(needs=["ask"], **more),
        }
    }


def server_of(run: Run, key: str) -> str:
    job_id = Node.objects.get(run=run, key=key).job_id
    return str(Attempt.objects.get(job_id=job_id).server)


def started(harness: WorkflowHarness, definition: dict[str, Any]) -> Run:
    """Start a chain, and let its first node end."""
    run = harness.start(definition)
    harness.until(run, lambda: Node.objects.filter(run=run, key="ask").exists())
    return run


def run_chain(harness: WorkflowHarness, definition: dict[str, Any]) -> tuple[str, str]:
    run = started(harness, definition)
    answer_wait(run, "ask", 1, by="me", ports=harness.ports)
    harness.to_end(run)
    assert run.state == RunState.COMPLETED
    return server_of(run, "a"), server_of(run, "b")


def test_of_idle_servers_the_one_where_the_other_node_ran_takes_the_job(servers: WorkflowHarness) -> None:
    plain = [run_chain(servers, chain()) for _ in range(5)]
    assert any(first != second for first, second in plain), "without it the slots take turns"
    near = [run_chain(servers, chain(near="a")) for _ in range(5)]
    assert {first for first, _ in near} == set(SLOTS)
    assert all(first == second for first, second in near)


def test_a_busy_near_server_does_not_keep_the_job_from_an_idle_one(servers: WorkflowHarness) -> None:
    while server_of(run := started(servers, chain(near="a")), "a") != "gpu-2":
        pass
    wait_for(lambda: {view.state for view in servers.worker_harness.leases.slots("gpu-2")} == {"free"})
    busy = submit(servers, seconds=8.0, near="gpu-2")
    thread = servers.worker_harness.work(servers.worker)
    wait_for(lambda: Attempt.objects.filter(job=busy).exists())
    assert Attempt.objects.get(job=busy).server == "gpu-2"
    answer_wait(run, "ask", 1, by="me", ports=servers.ports)
    servers.to_end(run)
    assert server_of(run, "b") == "gpu-1"
    assert Job.objects.get(id=Node.objects.get(run=run, key="b").job_id).near_server == "gpu-2"
    assert Job.objects.get(id=busy.id).state == "running", "the job did not wait for its end"
    thread.join(30)


@pytest.mark.database
def test_each_item_of_a_map_is_near_the_same_item_of_another_map(servers: WorkflowHarness) -> None:
    run = servers.start(
        {
            "nodes": {
                "first": {**model(), "map": {"count": 6}},
                "again": {**model(needs=["first"], near="first"), "map": {"count": 7}},
            }
        }
    )
    servers.to_end(run)
    assert run.state == RunState.COMPLETED
    for index in range(6):
        job = Job.objects.get(id=Node.objects.get(run=run, key=f"again[{index}]").job_id)
        assert job.near_server == server_of(run, f"first[{index}]")
    last = Job.objects.filter(id=Node.objects.get(run=run, key="again[6]").job_id)
    assert last.get().near_server is None
    last.update(near_server="gpu-3")
    assert any("prefers gpu-3" in line for line in check_runs(servers.ports, drained=True))
    last.update(near_server=None)
