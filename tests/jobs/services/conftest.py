"""Fixtures of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from gpus.leasing.store import RedisLeases
from gpus.node.config import NodeConfig
from gpus.node.server import Node
from gpus.protocol import SystemClock
from tests.builders import Told, make_model, make_ports, make_server
from tests.jobs.services.shop import Shop


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
