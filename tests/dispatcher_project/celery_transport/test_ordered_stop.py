"""The ordered stop: drain, grace period, interrupt, end; it never hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher_project.celery_transport.ordered_stop import OrderedStop
from tests.support.waiting import wait_for


class Bench:
    def __init__(
        self, *, grace_seconds: float, drain: Callable[[], Any] | None = None, last_seconds: float = 60.0
    ) -> None:
        self.steps: list[str] = []
        self.busy = 1
        self.stop = OrderedStop(
            grace_seconds=grace_seconds,
            drain=drain or (lambda: self.steps.append("drain")),
            busy=lambda: self.busy,
            interrupt=lambda: self.steps.append("interrupt"),
            end_process=lambda code: self.steps.append(f"exit {code}"),
            last_seconds=last_seconds,
        )
        self.thread = threading.Thread(target=self.stop._run)
        self.thread.start()

    def wait(self) -> list[str]:
        self.thread.join(30)
        assert not self.thread.is_alive()
        return self.steps


def test_an_idle_worker_is_only_drained() -> None:
    bench = Bench(grace_seconds=60)
    bench.busy = 0
    bench.stop.ask()
    wait_for(lambda: bench.steps)
    bench.stop.ended()
    assert bench.wait() == ["drain"]


def test_runs_that_end_within_the_grace_are_not_interrupted() -> None:
    bench = Bench(grace_seconds=60)
    bench.stop.ask()
    wait_for(lambda: bench.steps)
    bench.busy = 0
    bench.stop.ended()
    assert bench.wait() == ["drain"]


def test_remaining_runs_are_interrupted_after_the_grace_period() -> None:
    bench = Bench(grace_seconds=0.05)
    bench.stop.ask()
    wait_for(lambda: "interrupt" in bench.steps)
    bench.stop.ended()
    assert bench.wait() == ["drain", "interrupt"]


def test_a_worker_that_does_not_end_is_ended_by_force() -> None:
    bench = Bench(grace_seconds=0.05, last_seconds=0.1)
    bench.stop.ask()
    assert bench.wait() == ["drain", "interrupt", "exit 1"]


@pytest.mark.parametrize("first", ["Warm", "Cold"])
def test_a_cold_stop_has_no_grace_also_when_it_comes_second(first: str) -> None:
    bench = Bench(grace_seconds=3600, last_seconds=0.1)
    bench.stop.ask(how=first)
    bench.stop.ask(how="Cold")
    assert bench.wait() == ["drain", "interrupt", "exit 1"]


def test_a_drain_that_fails_does_not_keep_the_worker_from_ending() -> None:
    def drain() -> None:
        raise RuntimeError("Redis is away")

    bench = Bench(grace_seconds=0.05, drain=drain, last_seconds=0.1)
    bench.stop.ask()
    assert bench.wait() == ["interrupt", "exit 1"]


def test_a_worker_continues_if_its_successor_does_not_become_ready() -> None:
    bench = Bench(grace_seconds=60)
    answers = [False, True]
    bench.stop._replace = lambda is_stopped: answers.pop(0)
    bench.stop._end = lambda: bench.steps.append("end")
    bench.busy = 0
    bench.stop.ask("Replaced")
    wait_for(lambda: len(answers) == 1)
    assert bench.steps == []
    assert not bench.stop.draining
    bench.stop.ask("Replaced")
    wait_for(lambda: bench.steps)
    bench.stop.ended()
    assert bench.wait() == ["end", "drain"]
