"""Fences follow the fleet's time, rows the clocks: a row stores the fleet's time while it is ahead."""

from __future__ import annotations

from typing import Any

import pytest

from gpus.leasing.store import RedisLeases
from gpus.models import FleetIndex
from gpus.protocol import Lease
from jobs.index_rebuild.fleet_time import AHEAD_SECONDS
from jobs.sweeps import fleet_time
from tests.support.by_process import run_sweep
from tests.support.queue_harness import QueueHarness

HOUR = 3600.0


@pytest.fixture
def ahead(queue: QueueHarness) -> QueueHarness:
    """A queue whose Redis starts empty, an hour ahead."""
    queue.server(slots=2)
    for _ in range(4):
        queue.job()
    comes_up_empty(queue, HOUR)
    rebuild(queue)
    return queue


def comes_up_empty(queue: QueueHarness, ahead_seconds: float) -> None:
    queue.flush()
    queue.client.delete(*queue.client.keys(f"*{{{queue.fleet}}}:clock"))
    queue.leases = RedisLeases(
        queue.client,
        queue.fleet,
        now_ms=lambda: queue.clock.now_ms() + int(ahead_seconds * 1000),
        monotonic=queue.clock.monotonic,
    )


def rebuild(queue: QueueHarness) -> None:
    while queue.leases.generation() is None:
        run_sweep("generation", queue.ports)
        queue.clock.advance(1)


def run(queue: QueueHarness) -> Lease:
    lease = queue.claim()
    queue.release(lease)
    queue.leases.confirm_ends([lease.ref])
    return lease


def seen(queue: QueueHarness) -> Any:
    return FleetIndex.objects.filter(fleet=queue.fleet).values_list("time_us", flat=True).first()


def test_fences_grow_after_redis_was_ahead_was_corrected_and_lost_its_data(ahead: QueueHarness) -> None:
    before = run(ahead)
    comes_up_empty(ahead, 0.0)
    rebuild(ahead)
    assert run(ahead).fence > before.fence


@pytest.mark.parametrize("step_seconds", [HOUR, 30.0, 5.0])
def test_fences_grow_after_a_redis_that_was_ahead_for_long(queue: QueueHarness, step_seconds: float) -> None:
    """No rebuild comes in between; and the fleet's time has advanced since it was last stored."""
    queue.server(slots=2)
    for _ in range(4):
        queue.job()
    queue.leases = RedisLeases(  # a new process trusts the clock
        queue.client,
        queue.fleet,
        now_ms=lambda: queue.clock.now_ms() + int(step_seconds * 1000),
        monotonic=queue.clock.monotonic,
    )
    queue.leases.fill()
    for _ in range(3):
        queue.clock.advance(fleet_time.PERIOD_SECONDS)
        assert fleet_time.sweep(queue.ports).repaired == 1
    queue.clock.advance(fleet_time.PERIOD_SECONDS - 0.1)
    before = run(queue)
    comes_up_empty(queue, 0.0)
    rebuild(queue)
    assert run(queue).fence > before.fence


def test_a_fleet_time_that_is_not_ahead_is_not_stored(queue: QueueHarness) -> None:
    queue.server()
    assert fleet_time.sweep(queue.ports).repaired == 0
    assert not FleetIndex.objects.exists()
    queue.clock.set_back(AHEAD_SECONDS - 0.5)
    assert fleet_time.sweep(queue.ports).repaired == 0
    assert not FleetIndex.objects.exists()


def test_a_process_that_still_compares_clocks_stores_no_fleet_time(
    ahead: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    FleetIndex.objects.all().delete()
    monkeypatch.setattr(type(ahead.ports.clock_watch), "is_learning", lambda clocks: True)
    assert fleet_time.sweep(ahead.ports).repaired == 0
    assert not FleetIndex.objects.exists()


def test_once_the_fleet_time_is_not_ahead_a_rebuild_begins_with_redis_clock(ahead: QueueHarness) -> None:
    assert seen(ahead) is not None
    ahead.clock.advance(HOUR)  # now the clocks agree on the same time
    ahead.leases = RedisLeases(
        ahead.client, ahead.fleet, now_ms=ahead.clock.now_ms, monotonic=ahead.clock.monotonic
    )
    for _ in range(60):
        ahead.clock.advance(600)
        ahead.leases.fill()
        fleet_time.sweep(ahead.ports)
    assert seen(ahead) is None
    comes_up_empty(ahead, 0.0)
    rebuild(ahead)
    lease = run(ahead)
    assert lease.fence // 1000 == pytest.approx(ahead.clock.now_ms(), abs=20_000)


def test_recording_the_lead_does_not_change_the_layout(ahead: QueueHarness) -> None:
    FleetIndex.objects.filter(fleet=ahead.fleet).update(layout=9, time_us=None)
    fleet_time.sweep(ahead.ports)
    assert FleetIndex.objects.get(fleet=ahead.fleet).layout == 9
