"""Beat ticks by the monotonic clock, whatever the wall clock does, and exits if it hangs."""

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
schedule.TickScheduler(app, send=hang[sys.argv[1]], report_alive=lambda: None).tick()
"""


class Bench:
    def __init__(self) -> None:
        self.at = 100.0
        self.sent: list[float] = []
        self.reports = 0
        self.watchdog_restarts: list[float] = []
        self.scheduler = TickScheduler(
            app,
            send=lambda: self.sent.append(self.at),
            report_alive=self._count_report,
            watchdog=lambda: self.watchdog_restarts.append(self.at),
            clock=lambda: self.at,
        )

    def _count_report(self) -> None:
        self.reports += 1

    def run(self, seconds: float) -> None:
        """Tick and sleep for the returned seconds, as beat's loop does."""
        until = self.at + seconds
        while self.at < until:
            self.at += self.scheduler.tick() or 0.001


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_beat_ticks_every_second_and_at_once(bench: Bench) -> None:
    bench.run(3.5)
    assert bench.sent == [100.0, 101.0, 102.0, 103.0]


def test_a_wall_clock_set_back_does_not_stop_beat(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.run(0.5)
    day_before = time.time() - 86_400
    monkeypatch.setattr(time, "time", lambda: day_before)
    bench.run(2)
    assert len(bench.sent) == 3


def test_after_a_pause_one_tick_is_sent(bench: Bench) -> None:
    bench.run(0.5)
    bench.at += 60
    bench.scheduler.tick()
    bench.scheduler.tick()
    assert len(bench.sent) == 2


def test_every_tick_reports_liveness_even_if_it_could_not_be_sent(bench: Bench) -> None:
    bench.scheduler._send = lambda: False
    bench.run(1.5)
    assert bench.reports == 2


@pytest.mark.parametrize("way", ["waits", "holds the interpreter"])
def test_a_hanging_beat_exits_with_its_stacks(way: str) -> None:
    """In a separate process: compose, systemd and `up` restart it after its exit."""
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


def test_every_tick_restarts_the_watchdog_first(bench: Bench) -> None:
    bench.run(1.5)
    assert bench.watchdog_restarts == [100.0, 101.0]

    def hangs() -> None:
        raise TimeoutError

    bench.scheduler._send = bench.scheduler._report_alive = hangs
    with pytest.raises(TimeoutError):
        bench.run(1.0)
    assert len(bench.watchdog_restarts) == 3


def test_celery_uses_the_scheduler_and_has_no_other_schedule() -> None:
    assert app.conf.beat_scheduler == f"{TickScheduler.__module__}:{TickScheduler.__qualname__}"
    assert TickScheduler(app).schedule == {}
