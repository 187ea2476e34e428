"""What waits is held back while its tenant's day is used up, and goes on at midnight or when there is
more.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.index_rebuild.rebuild import Progress, Rebuild
from jobs.models import Rollup
from jobs.reports.rollups import day_of
from tests.jobs.sweeps.conftest import World
from tests.support.by_process import run_sweep


@pytest.fixture
def spent(world: World) -> World:
    """Two jobs wait; the tenant has used its day."""
    world.server()
    world.job()
    world.job()
    world.tenant.daily_gpu_seconds = 50.0
    world.tenant.save()
    Rollup.objects.create(
        span_seconds=3600,
        at=day_of(world.clock.now()),
        model="m",
        tenant=world.tenant,
        completed=1,
        gpu_seconds=50.0,
    )
    return world


def can_claim(world: World) -> bool:
    lease = world.leases.claim("m", worker="w", attempt_id=f"a{world.clock.monotonic()}")
    if lease is not None:
        world.release(lease)
        world.leases.settled([lease.ref])
        world.clock.advance(0.001)
    return lease is not None


def test_what_waits_is_held_back_until_midnight(spent: World) -> None:
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
def test_a_raised_quota_lets_it_go_on(spent: World, quota: float | None) -> None:
    run_sweep("quotas", spent.ports)
    spent.tenant.daily_gpu_seconds = quota
    spent.tenant.save()
    run_sweep("quotas", spent.ports)
    assert can_claim(spent)


def test_what_is_not_used_up_holds_nothing_back(spent: World) -> None:
    Rollup.objects.update(gpu_seconds=49.9)
    assert run_sweep("quotas", spent.ports).looked == 0
    assert can_claim(spent)


def test_an_index_that_is_made_anew_is_told_before_the_tickets(spent: World) -> None:
    spent.flush()
    rebuild = Rebuild.of(spent.fleet, spent.leases, spent.ports)
    for _ in range(20):
        if rebuild.step() is Progress.OPEN:
            break
        spent.clock.advance(1.0)
    assert not can_claim(spent)


def test_a_redis_that_was_away_is_told_once_it_is_back(spent: World) -> None:
    spent.redis_is_gone = True
    assert run_sweep("quotas", spent.ports).notes
    spent.redis_is_gone = False
    run_sweep("quotas", spent.ports)
    assert not can_claim(spent)
