"""Redis forgets everything, or dies: the database says what is true."""

from __future__ import annotations

import signal

import pytest

from gpus.leasing.store import RedisFleets
from tests.support.system.gates import open_gate
from tests.support.system.running import System
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario


def test_a_flushed_redis_loses_no_job_and_runs_none_twice(system: System) -> None:
    server = system.add_server("flushed", slots=2, mode="async")
    sync = system.add_server("flushed-sync")
    ids = system.tenant.submit_batch("flushed", [{"gate": "flushed"}] * 10)
    beside = system.tenant.submit_batch("flushed-sync", [{"gate": "flushed"}] * 3)
    wait_for(lambda: len(server.running()) == 2 and sync.running(), what="full slots")
    leases = RedisFleets(system.facts["redis_url"])("main")
    before = leases.generation()

    with system.redis() as redis:
        redis.flushall()
        redis.function_flush()
    wait_for(lambda: leases.generation() not in (None, before), what="a new index")
    open_gate("flushed")

    assert {system.tenant.finished(job_id)["status"] for job_id in [*ids, *beside]} == {"completed"}
    server.assert_each_ran_once(ids)
    sync.assert_each_ran_once(beside)
    server.assert_never_full()
    sync.assert_never_full()


def test_valkey_killed_under_load_costs_no_job(system: System) -> None:
    server = system.add_server("outage", slots=4)
    polled = system.add_server("outage-async", slots=2, mode="async")
    ids = system.tenant.submit_batch("outage", [{"seconds": 0.05}] * 150)
    beside = system.tenant.submit_batch("outage-async", [{"seconds": 0.2}] * 20)
    wait_for(lambda: server.ran() > 20 and polled.ran() > 2, what="some runs")

    valkey = system.signal("valkey", signal.SIGKILL)
    system.wait_for_successor("valkey", valkey)

    for model in ("outage", "outage-async"):
        wait_for(lambda name=model: system.tenant.unfinished(name) == 0, seconds=60, what=f"{model} done")
    for one, jobs in ((server, ids), (polled, beside)):
        one.assert_each_ran_once(jobs)
        one.assert_never_full()
