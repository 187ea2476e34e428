"""The limit of tenants without one of their own: `RemainingCapacity` and its use in `QueueLimits`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from foundation import ttl_cache
from foundation.ttl_cache import RemainingCapacity
from gpus.models import ModelConfig
from jobs.models import Job
from jobs.ports import LimitCaches

from .conftest import Account, World
from .test_bad_input import problem
from .test_limits import limit, submit


@pytest.fixture
def at_most_three(settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, tenant_max_queued=3)


def test_a_tenant_without_a_limit_has_that_of_the_settings(
    acme: Account, other: Account, zimg: ModelConfig, at_most_three: None
) -> None:
    assert [submit(acme).status_code for _ in range(4)] == [202, 202, 202, 429]
    said = problem(submit(acme), 429, "tenant_queue_full")
    assert "3 jobs of the tenant wait" in said["detail"]
    assert submit(other).status_code == 202
    assert Job.objects.filter(tenant=acme.tenant).count() == 3


def test_a_limit_of_its_own_counts_instead(acme: Account, zimg: ModelConfig, at_most_three: None) -> None:
    limit(acme, max_queued=5)
    assert [submit(acme).status_code for _ in range(6)] == [202] * 5 + [429]


def test_zero_means_any(acme: Account, zimg: ModelConfig, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, tenant_max_queued=0)
    assert submit(acme).status_code == 202


def test_the_rows_are_counted_once_in_some_seconds(
    acme: Account, zimg: ModelConfig, at_most_three: None, world: World
) -> None:
    world.limit_caches = LimitCaches(free_places=RemainingCapacity(keep_seconds=3600.0))
    submit(acme)
    with CaptureQueriesContext(connection) as seen:
        assert [submit(acme).status_code for _ in range(3)] == [202, 202, 429]
    assert not [query for query in seen if "COUNT(" in query["sql"].upper()]
    Job.objects.all().delete()
    assert submit(acme).status_code == 429, "what ended is seen by the next count"
    world.limit_caches.clear()
    assert submit(acme).status_code == 202


def test_what_takes_long_to_count_is_counted_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(ttl_cache.time, "monotonic", lambda: now)
    counts, places = 0, RemainingCapacity()

    def slowly() -> int:
        nonlocal now, counts
        now, counts = now + 1.0, counts + 1
        return 10

    for second in range(1, 110):
        now = max(now, float(second))
        places.take("one", 0, slowly)
    assert counts == 2, "a count of a second, once in a hundred"


def test_no_reservation_goes_below_none() -> None:
    places = RemainingCapacity()
    assert [places.take("one", 2, lambda: 3) for _ in range(3)] == [3, 1, 0]
