"""One wall clock for all hosts: the time of two clocks that agree, or of live peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
import redis

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.leasing.clock import (
    COMPARE_SECONDS,
    DATABASE,
    FRESH_SECONDS,
    HOST,
    LEARN_SECONDS,
    REDIS,
    UNCONFIRMED_SECONDS,
    SharedClock,
    time_of,
)
from tests.support.fakes import ManualClock

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


def test_while_redis_is_away_the_last_correction_counts() -> None:
    clock = clock_at(4.0, redis.exceptions.ConnectionError("gone"))
    clock.compare()
    clock.compare()
    assert (clock.now() - NOW).total_seconds() == 4.0


def test_clocks_are_compared_periodically_and_sooner_while_unconfirmed() -> None:
    clock = clock_at(600.0, 3.0, 2.0, 600.0)
    later: list[tuple[float, Callable[[], None]]] = []
    clock.keep_comparing(lambda seconds, work: later.append((seconds, work)))
    assert clock.now() == NOW
    sure, unsure = COMPARE_SECONDS, UNCONFIRMED_SECONDS
    for expected, soon in ((0.0, unsure), (3.0, sure), (2.0, sure), (2.0, sure)):
        later.pop()[1]()
        assert (clock.now() - NOW).total_seconds() == expected
        assert later[0][0] == soon


@dataclass
class Clocks:
    """Three clocks that run, each of which a test sets.

    living: how far ahead the time is that other processes go by and write; None: none live. written: Unix
    seconds, by them. redis, database: None where they can't be asked, or have no clock.
    """

    host: ManualClock = field(default_factory=lambda: ManualClock(NOW))
    redis: float | None = 0.0
    database: float | None = 0.0
    living: float | None = None
    passed: float = 0.0
    asked: int = 0

    def __post_init__(self) -> None:
        self.written: float | None = None
        self.start()

    def start(self) -> None:
        """A new process, which asks once."""
        self.shared = SharedClock(
            self.host, lambda: self._time(self.redis), lambda: self._time(self.database), lambda: self.written
        )
        self.shared.compare()

    def _time(self, ahead: float | None) -> float | None:
        self.asked += 1
        return None if ahead is None else self.true.timestamp() + ahead

    @property
    def true(self) -> datetime:
        return NOW + timedelta(seconds=self.passed)

    @property
    def error(self) -> float:
        """Error of the reported time, in seconds."""
        return (self.shared.now() - self.true).total_seconds()

    def wait(self, seconds: float) -> None:
        self.passed += seconds
        self.host.move(seconds)
        if self.living is not None:
            self.written = self.true.timestamp() + self.living

    def set_host(self, seconds: float) -> None:
        self.host.at += timedelta(seconds=seconds)


@pytest.mark.parametrize("by", [3600.0, -3600.0])
@pytest.mark.parametrize("which", [REDIS, DATABASE, HOST])
def test_one_wrong_clock_of_three_is_reported_and_ignored(which: str, by: float) -> None:
    clocks = Clocks()
    if which == HOST:
        clocks.set_host(by)
    elif which == REDIS:
        clocks.redis = by
    else:
        clocks.database = by
    assert clocks.error == 0.0  # before the first comparison
    clocks.wait(30.0)
    report = clocks.shared.fresh_report()
    assert clocks.error == 0.0
    assert {name: pytest.approx(seconds) for name, seconds in report.off.items()} == {which: by}
    assert not report.agree
    direction = "ahead" if by > 0 else "behind"
    assert str(report) == f"the clock of {which} is 3600 s {direction}"


# -- a process that starts while two clocks differ and there is no third -----------------------------------


@pytest.mark.parametrize("by", [600.0, -600.0, 20.0])
@pytest.mark.parametrize("which", [REDIS, HOST])
def test_a_new_process_uses_the_time_of_live_peers(which: str, by: float) -> None:
    clocks = Clocks(database=None, living=0.0)
    clocks.wait(30.0)
    if which == REDIS:
        clocks.redis = by
    else:
        clocks.set_host(by)
    clocks.start()
    clocks.wait(UNCONFIRMED_SECONDS)
    clocks.shared.compare()
    assert clocks.error == 0.0
    clocks.living = None
    for _ in range(3):
        clocks.wait(30.0)
        assert not clocks.shared.fresh_report().agree
        assert clocks.error == 0.0


def test_a_time_written_before_the_start_is_ignored() -> None:
    """A Redis that slept as long as the system was down would be as old as the last rows."""
    clocks = Clocks(database=None, living=0.0)
    clocks.wait(30.0)
    clocks.living = None
    clocks.wait(3600.0)
    clocks.redis = -3600.0
    clocks.start()
    for _ in range(3):
        clocks.wait(UNCONFIRMED_SECONDS)
        clocks.shared.compare()
        assert clocks.error == 0.0


def test_the_living_may_go_by_a_time_that_no_clock_has_any_more() -> None:
    clocks = Clocks(database=None, living=-600.0)
    clocks.redis = 600.0
    clocks.start()
    clocks.wait(UNCONFIRMED_SECONDS)
    clocks.shared.compare()
    assert clocks.error == -600.0


@pytest.mark.parametrize("by", [600.0, -600.0])
def test_without_peers_a_new_process_uses_its_hosts_clock(by: float) -> None:
    clocks = Clocks(redis=by, database=None)
    assert clocks.error == 0.0
    clocks.wait(UNCONFIRMED_SECONDS)
    clocks.shared.compare()
    assert clocks.error == 0.0
    assert clocks.shared.report().off == {REDIS: by}


@pytest.mark.parametrize("redis", [None, 600.0])
def test_or_by_the_database_which_all_processes_share(redis: float | None) -> None:
    host = ManualClock(NOW + timedelta(seconds=-600))
    clocks = Clocks(host, redis=redis)
    assert clocks.error == 0.0


def test_unreadable_peer_times_are_ignored() -> None:
    def break_off() -> float:
        raise OSError("gone")

    clock = SharedClock(ManualClock(NOW), lambda: NOW.timestamp() + 600, peer_time=break_off)
    clock.compare()
    clock.compare()
    assert clock.now() == NOW


@pytest.mark.parametrize("others", [None, -7200.0])
def test_clocks_that_all_differ_do_not_change_the_time(others: float | None) -> None:
    clocks = Clocks(database=None if others is None else 0.0)
    clocks.redis, clocks.database = 3600.0, others
    clocks.wait(60.0)
    assert not clocks.shared.fresh_report().agree
    assert clocks.error == 0.0
    clocks.redis = 0.2
    clocks.wait(60.0)
    clocks.database = 0.0
    assert clocks.shared.fresh_report().agree


def test_an_unconfirmed_process_compares_again_before_its_work() -> None:
    """Redis was away when it began, and answers by now; the database's clock is five minutes ahead."""
    host, answers = ManualClock(NOW), iter([redis.exceptions.ConnectionError("gone"), NOW.timestamp() + 1.0])

    def redis_time() -> float:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    clock = SharedClock(host, redis_time, lambda: host.now().timestamp() + 300.0)
    assert not clock.confirm_time()
    assert clock.is_learning()
    assert clock.now() == NOW + timedelta(seconds=300)
    host.move(FRESH_SECONDS)
    assert not clock.is_learning()
    assert clock.confirm_time()
    assert abs(clock.now() - host.now()) < timedelta(seconds=2)
    assert clock.confirm_time(), "and is not asked again"


def test_learning_ends_after_the_peers_writing_period() -> None:
    host, calls = ManualClock(NOW), []

    def redis_time() -> float:
        calls.append(host.monotonic())
        return host.now().timestamp() + 300.0

    clock = SharedClock(host, redis_time)
    assert clock.is_learning()
    host.move(LEARN_SECONDS - 0.1)
    assert clock.is_learning()
    host.move(0.1)
    assert not clock.is_learning(), "no other process lives"
    asked = len(calls)
    host.move(60.0)
    assert not clock.is_learning()
    assert len(calls) == asked, "a Redis that hangs costs each question its time-out"


def test_a_process_with_a_single_clock_is_not_learning() -> None:
    def redis_time() -> float:
        raise redis.exceptions.ConnectionError("gone")

    clock = SharedClock(ManualClock(NOW), redis_time)
    assert not clock.confirm_time()
    assert not clock.is_learning()


def test_clocks_within_the_tolerance_agree() -> None:
    clocks = Clocks(redis=4.0)
    assert clocks.shared.fresh_report().agree
    assert clocks.error == 0.0


def test_a_fresh_report_compares_again_but_not_twice_in_a_second() -> None:
    clocks = Clocks()
    asked = clocks.asked
    clocks.shared.fresh_report()
    assert clocks.asked == asked
    clocks.wait(FRESH_SECONDS)
    clocks.redis = 60.0
    assert clocks.shared.report().agree
    assert not clocks.shared.fresh_report().agree
    assert clocks.shared.report().off == {REDIS: 60.0}


def test_the_time_of_a_real_server(valkey: EmbeddedValkey) -> None:
    assert abs(time_of(valkey.url)() - datetime.now(UTC).timestamp()) < 5.0


def test_a_slow_answer_takes_no_right_correction_back() -> None:
    """Redis answers once after three seconds: the earlier measurement is better."""
    host, slow = ManualClock(NOW), [0.0, 3.0, 0.0]

    def redis_time() -> float:
        seconds = slow.pop(0)
        host.move(seconds / 2)
        answer = host.now().timestamp() + 1.5
        host.move(seconds / 2)
        return answer

    clock = SharedClock(host, redis_time)
    for _ in range(3):
        clock.compare()
        assert (clock.now() - host.now()).total_seconds() == pytest.approx(1.5)
        host.move(30.0)
