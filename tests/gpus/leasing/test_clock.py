"""Every host's wall clock is Redis' own, as far as Redis answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
import redis

from dispatcher_project.embedded import EmbeddedValkey
from gpus.leasing.clock import DATABASE, FRESH_SECONDS, HOST, REDIS, SharedClock, time_of
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


@dataclass
class Clocks:
    """Three clocks that run, each of which a test sets."""

    host: ManualClock = field(default_factory=lambda: ManualClock(NOW))
    redis: float | None = 0.0
    database: float | None = 0.0
    passed: float = 0.0
    asked: int = 0

    def __post_init__(self) -> None:
        self.shared = SharedClock(
            self.host, lambda: self._time(self.redis), lambda: self._time(self.database)
        )
        self.shared.ask()

    def _time(self, ahead: float | None) -> float | None:
        self.asked += 1
        return None if ahead is None else self.true.timestamp() + ahead

    @property
    def true(self) -> datetime:
        return NOW + timedelta(seconds=self.passed)

    @property
    def error(self) -> float:
        """Of what is told as the time, seconds."""
        return (self.shared.now() - self.true).total_seconds()

    def wait(self, seconds: float) -> None:
        self.passed += seconds
        self.host.move(seconds)

    def set_host(self, seconds: float) -> None:
        self.host.at += timedelta(seconds=seconds)


@pytest.mark.parametrize("by", [3600.0, -3600.0])
@pytest.mark.parametrize("which", [REDIS, DATABASE, HOST])
def test_one_clock_of_three_that_is_wrong_misleads_nobody_and_is_named(which: str, by: float) -> None:
    clocks = Clocks()
    if which == HOST:
        clocks.set_host(by)
    elif which == REDIS:
        clocks.redis = by
    else:
        clocks.database = by
    assert clocks.error == 0.0  # before anybody was asked
    clocks.wait(30.0)
    report = clocks.shared.compared()
    assert clocks.error == 0.0
    assert {name: pytest.approx(seconds) for name, seconds in report.off.items()} == {which: by}
    assert not report.agree
    direction = "ahead" if by > 0 else "behind"
    assert str(report) == f"the clock of {which} is 3600 s {direction}"


@pytest.mark.parametrize("others", [None, -7200.0])
def test_clocks_of_which_no_two_agree_change_nothing(others: float | None) -> None:
    clocks = Clocks(database=None if others is None else 0.0)
    clocks.redis, clocks.database = 3600.0, others
    clocks.wait(60.0)
    assert not clocks.shared.compared().agree
    assert clocks.error == 0.0
    clocks.redis = 0.2
    clocks.wait(60.0)
    clocks.database = 0.0
    assert clocks.shared.compared().agree


def test_clocks_that_differ_by_seconds_are_as_good_as_one() -> None:
    clocks = Clocks(redis=4.0)
    assert clocks.shared.compared().agree
    assert clocks.error == 0.0


def test_a_verdict_compares_anew_and_not_twice_in_a_moment() -> None:
    clocks = Clocks()
    asked = clocks.asked
    clocks.shared.compared()
    assert clocks.asked == asked
    clocks.wait(FRESH_SECONDS)
    clocks.redis = 60.0
    assert clocks.shared.report().agree
    assert not clocks.shared.compared().agree
    assert clocks.shared.report().off == {REDIS: 60.0}


def test_the_time_of_a_real_server(valkey: EmbeddedValkey) -> None:
    assert abs(time_of(valkey.url)() - datetime.now(UTC).timestamp()) < 5.0


def test_a_slow_answer_takes_no_right_correction_back() -> None:
    """Redis answers after three seconds once: what was measured before is better than such an answer."""
    host, slow = ManualClock(NOW), [0.0, 3.0, 0.0]

    def redis_time() -> float:
        seconds = slow.pop(0)
        host.move(seconds / 2)
        answer = host.now().timestamp() + 1.5
        host.move(seconds / 2)
        return answer

    clock = SharedClock(host, redis_time)
    for _ in range(3):
        clock.ask()
        assert (clock.now() - host.now()).total_seconds() == pytest.approx(1.5)
        host.move(30.0)
