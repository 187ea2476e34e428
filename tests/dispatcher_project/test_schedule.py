"""Beat ticks by the monotonic clock, whatever the wall clock does."""

from __future__ import annotations

import time

import pytest

from dispatcher_project.celery import app
from dispatcher_project.schedule import TickScheduler


class Bench:
    def __init__(self) -> None:
        self.at = 100.0
        self.sent: list[float] = []
        self.said = 0
        self.scheduler = TickScheduler(
            app, send=lambda: self.sent.append(self.at), say=self._say, clock=lambda: self.at
        )

    def _say(self) -> None:
        self.said += 1

    def run(self, seconds: float) -> None:
        """As beat's loop does: tick, sleep as long as it says, tick."""
        until = self.at + seconds
        while self.at < until:
            self.at += self.scheduler.tick() or 0.001


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_one_tick_a_second_the_first_at_once(bench: Bench) -> None:
    bench.run(3.5)
    assert bench.sent == [100.0, 101.0, 102.0, 103.0]


def test_a_wall_clock_that_steps_back_does_not_stop_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.run(0.5)
    day_before = time.time() - 86_400
    monkeypatch.setattr(time, "time", lambda: day_before)
    bench.run(2)
    assert len(bench.sent) == 3


def test_after_a_standstill_one_tick_is_sent_and_not_all_that_were_missed(bench: Bench) -> None:
    bench.run(0.5)
    bench.at += 60
    bench.scheduler.tick()
    bench.scheduler.tick()
    assert len(bench.sent) == 2


def test_every_tick_says_that_beat_is_alive_even_if_it_could_not_be_sent(bench: Bench) -> None:
    bench.scheduler._send = lambda: False
    bench.run(1.5)
    assert bench.said == 2


def test_celery_is_told_to_use_it_and_nothing_else_is_scheduled() -> None:
    assert app.conf.beat_scheduler == f"{TickScheduler.__module__}:{TickScheduler.__qualname__}"
    assert TickScheduler(app).schedule == {}
