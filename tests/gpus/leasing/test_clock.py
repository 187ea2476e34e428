"""Every host's wall clock is Redis' own, as far as Redis answers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import redis

from dispatcher_project.embedded import EmbeddedValkey
from gpus.leasing.clock import SharedClock, time_of
from tests.builders import ManualClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def clock_at(*answers: float | Exception) -> SharedClock:
    """answers: how far Redis is ahead, at each time that it is asked."""
    left = iter(answers)

    def redis_time() -> float:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return NOW.timestamp() + answer

    return SharedClock(ManualClock(NOW), redis_time)


def test_a_wrong_clock_is_corrected_and_a_right_one_left_alone() -> None:
    clock = clock_at(-300.0, 0.2)
    clock.ask()
    assert (clock.now() - NOW).total_seconds() == -300.0
    clock.ask()
    assert clock.now() == NOW


def test_while_redis_is_away_the_last_correction_counts() -> None:
    clock = clock_at(40.0, redis.exceptions.ConnectionError("gone"))
    clock.ask()
    clock.ask()
    assert (clock.now() - NOW).total_seconds() == 40.0


def test_it_goes_on_asking_in_the_background() -> None:
    clock = clock_at(10.0, 20.0)
    later: list[tuple[float, Callable[[], None]]] = []
    clock.keep_asking(lambda seconds, work: later.append((seconds, work)))
    assert clock.now() == NOW
    for expected in (10.0, 20.0):
        later.pop()[1]()
        assert (clock.now() - NOW).total_seconds() == expected
        assert later[0][0] > 0


def test_the_time_of_a_real_server(valkey: EmbeddedValkey) -> None:
    assert abs(time_of(valkey.url)() - datetime.now(UTC).timestamp()) < 5.0
