"""Fixtures of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from tests.support.factories import make_model
from tests.support.shop import Shop, open_shop
from tests.workflows.theatre import Theatre
from verification.workflow_laws import check_runs


@pytest.fixture
def shop(valkey, fleet) -> Iterator[Shop]:
    node = Node(NodeConfig(handler="gpu_host.node.simulator:run", slots=4, port=0, cancel_wait_seconds=4.0))
    node.start()
    model = make_model("m", cancel_endpoint_template="/cancel/{job_id}", max_retries=0)
    shop = open_shop(valkey.url, fleet, model, f"{node.url}/generate", slots=4, node=node)
    yield shop
    shop.close()
    node.stop()


@pytest.fixture
def theatre(shop: Shop) -> Iterator[Theatre]:
    """A theatre whose runs keep the laws, whatever was played."""
    theatre = Theatre(shop)
    yield theatre
    if theatre.keeps_laws:
        assert not list(check_runs(theatre.ports, drained=False))
