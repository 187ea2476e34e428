"""The cost of an idle dispatcher: few queries per tick, each answered by an index."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gpus.registry.queries import RegistryCache
from jobs.sweeps import deadlines, due_callbacks, orphans, quarantine
from jobs.sweeps.registry import Sweeps
from jobs.sweeps.runner import Runner
from tests.support.queue_harness import QueueHarness

pytestmark = pytest.mark.database


def test_ten_idle_seconds_cost_few_queries(queue: QueueHarness) -> None:
    queue.server(slots=4)
    ports = replace(queue.ports, registry=RegistryCache(3600.0))
    runner = Runner(ports, Sweeps().entries, in_thread=lambda _: None)
    runner.tick()
    with CaptureQueriesContext(connection) as queries:
        for _ in range(10):
            queue.clock.advance(1)
            runner.tick()
    assert len(queries) <= 140  # four a second ask whether there are runs and schedules
    assert sum("INSERT" in query["sql"] for query in queries.captured_queries) == 2


@pytest.mark.parametrize(
    "sweep", [deadlines.sweep, due_callbacks.DueCallbacksSweep(), quarantine.is_needed, orphans.is_needed]
)
def test_queries_of_every_second_do_not_read_the_queue(queue: QueueHarness, sweep) -> None:  # type: ignore[no-untyped-def]
    if connection.vendor != "sqlite":
        pytest.skip("the plan of an empty table says nothing elsewhere")
    with CaptureQueriesContext(connection) as queries:
        sweep(queue.ports)
    for query in queries.captured_queries:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
            plan = " ".join(row[3] for row in cursor.fetchall())
        assert "USING" in plan, query["sql"]
        assert "job_waiting_idx (state=?)" not in plan or "COVERING" in plan, query["sql"]
