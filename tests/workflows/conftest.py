"""Fixtures of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from tests.support.factories import make_model
from tests.support.worker_harness import WorkerHarness, make_harness
from tests.workflows.workflow_harness import WorkflowHarness
from verification.workflow_laws import check_runs


@pytest.fixture
def worker_harness(valkey, fleet) -> Iterator[WorkerHarness]:
    node = Node(NodeConfig(handler="gpu_host.node.simulator:run", slots=4, port=0, cancel_wait_seconds=4.0))
    node.start()
    model = make_model("m", cancel_endpoint_template="/cancel/{job_id}", max_retries=0)
    worker_harness = make_harness(valkey.url, fleet, model, f"{node.url}/generate", slots=4, node=node)
    yield worker_harness
    worker_harness.close()
    node.stop()


@pytest.fixture
def harness(worker_harness: WorkerHarness) -> Iterator[WorkflowHarness]:
    """At the end of each test, check the laws of all its runs."""
    harness = WorkflowHarness(worker_harness)
    yield harness
    if harness.keeps_laws:
        assert not list(check_runs(harness.ports, drained=False))
