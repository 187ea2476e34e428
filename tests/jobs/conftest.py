"""A harness with a GPU node, for all rooms of jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from tests.support.factories import make_model
from tests.support.worker_harness import WorkerHarness, make_harness


@pytest.fixture
def harness(valkey, fleet, request) -> Iterator[WorkerHarness]:
    options = getattr(request, "param", {})
    slots, mode = options.get("slots", 1), options.get("mode", "sync")
    handler = options.get("handler", "gpu_host.node.simulator:run")
    # how fast a handler stops is not asked here, but that a cancel is confirmed
    node = Node(NodeConfig(handler=handler, slots=slots, port=0, mode=mode, cancel_wait_seconds=4.0))
    node.start()
    model = make_model(
        "m",
        model_type=mode,
        poll_endpoint_template="/status/{id}" if mode == "async" else None,
        cancel_endpoint_template="/cancel/{job_id}",
        poll_interval=0.05,
    )
    harness = make_harness(valkey.url, fleet, model, f"{node.url}/generate", slots=slots, node=node)
    yield harness
    harness.close()
    node.stop()
