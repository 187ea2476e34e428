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
from tests.support.api_harness import Account, ApiHarness
from tests.support.limits import limit, submit
from tests.support.problems import problem


@pytest.fixture
def at_most_three(settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, tenant_max_queued=3)


def test_a_tenant_without_a_limit_has_the_default_limit(
    acme: Account, other: Account, zimg: ModelConfig, at_most_three: None
) -> None:
    assert [submit(acme).status_code for _ in range(4)] == [202, 202, 202, 429]
    body = problem(submit(acme), 429, "tenant_queue_full")
    assert "3 jobs of the tenant wait" in body["detail"]
    assert submit(other).status_code == 202
    assert Job.objects.filter(tenant=acme.tenant).count() == 3


def test_a_tenants_own_limit_replaces_the_default(
    acme: Account, zimg: ModelConfig, at_most_three: None
) -> None:
    limit(acme, max_queued=5)
    assert [submit(acme).status_code for _ in range(6)] == [202] * 5 + [429]


def test_a_default_of_zero_means_no_limit(acme: Account, zimg: ModelConfig, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, tenant_max_queued=0)
    assert submit(acme).status_code == 202


def test_waiting_jobs_are_counted_once_in_some_seconds(
    acme: Account, zimg: ModelConfig, at_most_three: None, api: ApiHarness
) -> None:
    api.limit_caches = LimitCaches(free_places=RemainingCapacity(keep_seconds=3600.0))
    submit(acme)
    with CaptureQueriesContext(connection) as seen:
        assert [submit(acme).status_code for _ in range(3)] == [202, 202, 429]
    assert not [query for query in seen if "COUNT(" in query["sql"].upper()]
    Job.objects.all().delete()
    assert submit(acme).status_code == 429, "the next count sees the ended jobs"
    api.limit_caches.clear()
    assert submit(acme).status_code == 202


def test_a_slow_count_is_repeated_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert counts == 2, "a count that takes a second is repeated every hundred seconds"


def test_free_places_never_become_negative() -> None:
    places = RemainingCapacity()
    assert [places.take("one", 2, lambda: 3) for _ in range(3)] == [3, 1, 0]
