"""After a flush of Redis, fair sharing between tenants goes on where it was."""

from __future__ import annotations

from typing import Any

from django.db import connection

from foundation.ids import new_id
from gpus.protocol import ReleaseMode
from jobs.index_rebuild.shares import excess_seconds, recent_shares
from jobs.models import Attempt, Tenant
from tests.support.by_process import run_sweep
from tests.support.queue_harness import QueueHarness


def served(queue: QueueHarness, tenant: Tenant, seconds: float, *, ago: float = 60.0) -> None:
    """Create an ended run of the tenant."""
    job = queue.job(tenant=tenant, push=False)
    at = queue.clock.now().timestamp() - ago
    Attempt.objects.create(
        id=new_id(at),
        job=job,
        number=1,
        round=1,
        state="completed",
        server="gpu-1",
        slot=0,
        slot_freed=True,
        model="m",
        worker="w",
        started_at=queue.clock.now(),
        finished_at=queue.clock.now(),
        gpu_seconds=seconds,
    )
    type(job).objects.filter(pk=job.pk).update(state="completed", finished_at=queue.clock.now())


def rebuild(queue: QueueHarness) -> None:
    queue.flush()
    for _ in range(12):
        run_sweep("generation", queue.ports)
        if queue.leases.generation() is not None:
            return
        queue.clock.advance(1)
    raise AssertionError("not rebuilt")


def order(queue: QueueHarness, jobs: int) -> list[str]:
    """The tenants of the jobs that run, one after the other."""
    tenants = []
    for _ in range(jobs):
        lease = queue.claim(written=False)
        tenants.append(lease.tenant)
        queue.leases.release(lease.ref, ReleaseMode.ENDED, worker="w1", gpu_seconds=1.0)
        queue.leases.confirm_ends([lease.ref])
    return tenants


def test_a_tenant_that_got_more_lately_comes_later(queue: QueueHarness) -> None:
    queue.server(slots=1)
    greedy, modest = (Tenant.objects.create(name=name) for name in ("greedy", "modest"))
    served(queue, greedy, 9.0)
    served(queue, modest, 2.0)
    for _ in range(4):
        queue.job(tenant=greedy)  # first in the queue
    for _ in range(4):
        queue.job(tenant=modest)
    rebuild(queue)
    assert order(queue, 4) == [str(modest.pk)] * 4


def test_old_runs_do_not_count(queue: QueueHarness) -> None:
    queue.server(slots=1)
    tenant = Tenant.objects.create(name="early")
    served(queue, tenant, 9.0, ago=700.0)
    queue.job(tenant=tenant)
    assert recent_shares("m", queue.clock.now()) == []


def test_excess_counts_from_the_waiting_tenant_that_got_least() -> None:
    assert excess_seconds({1: 9.0, 2: 4.0}, {1, 2}, {}, longest=100.0) == {1: 5.0}


def test_shares_are_divided_by_weight() -> None:
    assert excess_seconds({1: 9.0, 2: 3.0}, {1, 2}, {1: 3.0}, longest=100.0) == {}


def test_an_idle_tenant_gets_at_most_one_run_ahead() -> None:
    assert excess_seconds({1: 500.0}, {1, 2}, {}, longest=20.0) == {1: 20.0}


def test_without_waiting_tenants_there_is_no_excess() -> None:
    assert excess_seconds({1: 500.0}, set(), {}, longest=20.0) == {}


def test_a_tenant_created_during_the_read_is_handled(queue: QueueHarness) -> None:
    queue.server()
    served(queue, queue.tenant, 9.0)
    came: list[Tenant] = []

    def come(execute: Any, *query: Any) -> Any:
        answer = execute(*query)
        if not came:
            came.append(queue.tenant)
            came.append(Tenant.objects.create(name="new"))
            queue.job(tenant=came[-1], push=False)
        return answer

    with connection.execute_wrapper(come):
        shares = recent_shares("m", queue.clock.now())
    assert [(one.tenant, one.seconds) for one in shares] == [(str(queue.tenant.pk), 9.0)]
