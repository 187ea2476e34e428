"""The sweep `quotas`: jobs of a tenant with an exhausted quota are parked until midnight or until the quota
is raised.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.index_rebuild.rebuild import Progress, Rebuild
from jobs.models import Rollup
from jobs.reports.rollups import day_of
from tests.support.by_process import run_sweep
from tests.support.queue_harness import QueueHarness


@pytest.fixture
def spent(queue: QueueHarness) -> QueueHarness:
    """Two jobs wait, and the tenant's quota of the day is used up."""
    queue.server()
    queue.job()
    queue.job()
    queue.tenant.daily_gpu_seconds = 50.0
    queue.tenant.save()
    Rollup.objects.create(
        span_seconds=3600,
        at=day_of(queue.clock.now()),
        model="m",
        tenant=queue.tenant,
        completed=1,
        gpu_seconds=50.0,
    )
    return queue


def can_claim(queue: QueueHarness) -> bool:
    lease = queue.leases.claim("m", worker="w", attempt_id=f"a{queue.clock.monotonic()}")
    if lease is not None:
        queue.release(lease)
        queue.leases.confirm_ends([lease.ref])
        queue.clock.advance(0.001)
    return lease is not None


def test_waiting_jobs_are_parked_until_midnight(spent: QueueHarness) -> None:
    assert run_sweep("quotas", spent.ports).looked == 1
    assert not can_claim(spent)
    midnight = day_of(spent.clock.now()) + timedelta(days=1)
    spent.clock.advance((midnight - spent.clock.now()).total_seconds() - 1)
    run_sweep("quotas", spent.ports)
    assert not can_claim(spent)
    spent.clock.advance(1)
    run_sweep("quotas", spent.ports)
    assert spent.wakes
    assert can_claim(spent)


@pytest.mark.parametrize("quota", [50.1, None])
def test_a_raised_quota_unparks_the_jobs(spent: QueueHarness, quota: float | None) -> None:
    run_sweep("quotas", spent.ports)
    spent.tenant.daily_gpu_seconds = quota
    spent.tenant.save()
    run_sweep("quotas", spent.ports)
    assert can_claim(spent)


def test_a_quota_that_is_not_used_up_parks_no_job(spent: QueueHarness) -> None:
    Rollup.objects.update(gpu_seconds=49.9)
    assert run_sweep("quotas", spent.ports).looked == 0
    assert can_claim(spent)


def test_a_rebuilt_index_gets_parked_tenants_before_the_tickets(spent: QueueHarness) -> None:
    spent.flush()
    rebuild = Rebuild.of(spent.fleet, spent.leases, spent.ports)
    for _ in range(20):
        if rebuild.step() is Progress.OPEN:
            break
        spent.clock.advance(1.0)
    assert not can_claim(spent)


def test_parked_tenants_are_written_once_redis_is_back(spent: QueueHarness) -> None:
    spent.redis_is_gone = True
    assert run_sweep("quotas", spent.ports).notes
    spent.redis_is_gone = False
    run_sweep("quotas", spent.ports)
    assert not can_claim(spent)
