"""Values that are cached for a while."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models.signals import post_delete, post_save

from foundation.ttl_cache import AdaptiveTtlValue, RowChanges, TtlCache
from gpus.registry.queries import RegistryCache, rows_changed
from jobs.models import Tenant
from jobs.ports import LimitCaches


class Reading:
    """A clock, and a read of a given duration."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds, self.times = 0.0, seconds, 0
        self.answer = AdaptiveTtlValue[int](lambda: self.now)

    def ask(self) -> int:
        def read() -> int:
            self.now += self.seconds
            self.times += 1
            return self.times

        return self.answer.get(read)


def test_a_cheap_answer_is_read_each_time() -> None:
    reading = Reading(0.1)
    assert [reading.ask() for _ in range(3)] == [1, 2, 3]


def test_a_costly_answer_is_kept_for_ten_times_as_long_as_it_took() -> None:
    reading = Reading(0.5)
    assert [reading.ask() for _ in range(3)] == [1, 1, 1]
    reading.now += 4.9
    assert reading.ask() == 1
    reading.now += 0.1
    assert reading.ask() == 2


def test_no_answer_is_kept_for_longer_than_half_a_minute() -> None:
    reading = Reading(20.0)
    reading.ask()
    reading.now += 30.0
    assert reading.ask() == 2


def test_a_value_read_before_a_change_is_not_cached_after_it() -> None:
    cache = TtlCache[str, int](3600.0, max_entries=10)

    def read_and_change() -> int:
        cache.clear()
        return 1

    assert cache.get("limit", read_and_change) == 1
    assert cache.get("limit", lambda: 2) == 2


def cache_of_tenants() -> TtlCache[str, int]:
    return TtlCache[str, int](3600.0, max_entries=10, changes=RowChanges((Tenant,)))


@pytest.mark.django_db
@pytest.mark.parametrize("signal", [post_save, post_delete])
def test_a_change_of_a_row_is_seen_at_once_and_again_after_its_commit(
    signal: Any, django_capture_on_commit_callbacks: Any
) -> None:
    cache = cache_of_tenants()
    cache.get("limit", lambda: 1)
    with django_capture_on_commit_callbacks(execute=True):
        signal.send(Tenant)
        assert cache.peek("limit") is None
        assert cache.get("limit", lambda: 2) == 2, "another thread reads the row of before"
    assert cache.get("limit", lambda: 3) == 3


@pytest.mark.django_db
def test_a_row_that_was_read_before_its_change_is_not_cached_after_it() -> None:
    cache = cache_of_tenants()

    def read_and_change() -> int:
        post_save.send(Tenant)
        return 1

    assert cache.get("limit", read_and_change) == 1
    assert cache.get("limit", lambda: 2) == 2


def test_caches_are_no_receivers_of_signals() -> None:
    def receivers() -> list[int]:
        return [len(signal.receivers) for signal in (post_save, post_delete, rows_changed)]

    before, caches = receivers(), [(RegistryCache(), LimitCaches()) for _ in range(3)]
    assert (receivers(), len(caches)) == (before, 3)
