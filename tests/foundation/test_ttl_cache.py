"""Values that are cached for a while."""

from __future__ import annotations

from foundation.ttl_cache import AdaptiveTtlValue, TtlCache


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
