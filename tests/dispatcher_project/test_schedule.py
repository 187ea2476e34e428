"""Beat ticks by the monotonic clock, whatever the wall clock does; one that is stuck ends itself."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from dispatcher_project.celery import app
from dispatcher_project.schedule import TickScheduler
from dispatcher_project.supervisor.data_folder import ROOT

_STUCK = """
import re, sys, time
import django
django.setup()
from dispatcher_project import schedule
from dispatcher_project.celery import app
schedule.STUCK_SECONDS = 1.0
hang = {"waits": lambda: time.sleep(60), "holds the interpreter": lambda: re.match("(a+)+$", "a" * 60 + "b")}
schedule.TickScheduler(app, send=hang[sys.argv[1]], say=lambda: None).tick()
"""


class Bench:
    def __init__(self) -> None:
        self.at = 100.0
        self.sent: list[float] = []
        self.said = 0
        self.promised: list[float] = []
        self.scheduler = TickScheduler(
            app,
            send=lambda: self.sent.append(self.at),
            say=self._say,
            promise=lambda: self.promised.append(self.at),
            clock=lambda: self.at,
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


@pytest.mark.parametrize("way", ["waits", "holds the interpreter"])
def test_a_beat_whose_send_does_not_come_back_ends_and_says_where_it_was(way: str) -> None:
    """In a process of its own: what restarts it (compose, systemd, `up`) needs its end, not its word."""
    stuck = subprocess.run(
        [sys.executable, "-c", _STUCK, way],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert stuck.returncode == 1, stuck.stderr
    assert "in tick" in stuck.stderr


def test_every_tick_promises_the_next_one_before_anything_can_hang(bench: Bench) -> None:
    bench.run(1.5)
    assert bench.promised == [100.0, 101.0]

    def hangs() -> None:
        raise TimeoutError

    bench.scheduler._send = bench.scheduler._say = hangs
    with pytest.raises(TimeoutError):
        bench.run(1.0)
    assert len(bench.promised) == 3


def test_celery_is_told_to_use_it_and_nothing_else_is_scheduled() -> None:
    assert app.conf.beat_scheduler == f"{TickScheduler.__module__}:{TickScheduler.__qualname__}"
    assert TickScheduler(app).schedule == {}
