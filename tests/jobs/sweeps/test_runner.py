"""The runner of sweeps: periods, threads, ages, and isolation of the sweeps from each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest

from gpus.errors import LeasingUnavailable
from gpus.registry.layouts import IndexState, Layouts
from jobs.models import SweepRun
from jobs.ports import Ports
from jobs.sweeps import base
from jobs.sweeps.base import Sweep, SweepCount, sweep_groups, sweep_rows
from jobs.sweeps.registry import Entry, Sweeps
from jobs.sweeps.runner import Runner
from tests.support.fakes import WrongClocks
from tests.support.queue_harness import NoRedis, VirtualClock
from tests.support.waiting import wait_for


class Stage:
    """A runner over sweeps made of lambdas; `threads` collects the work for threads."""

    def __init__(self, layouts: Layouts | None = None, /, **entries: Entry) -> None:
        self.clock = VirtualClock()
        self.threads: list[Callable[[], None]] = []
        self.runner = Runner(
            Ports(
                clock=self.clock,
                leases=lambda _: NoRedis(),
                send_wakes=len,
                wake_callbacks=lambda _: None,
                announce=lambda _: None,
                after=lambda seconds, work: None,
                layouts=layouts or Layouts(),
            ),
            lambda: entries,
            in_thread=self.threads.append,
        )

    def tick(self) -> list[str]:
        return list(self.runner.tick())


def counts(number: int) -> Sweep:
    return lambda _ports: SweepCount(number, number)


def fails(_ports: Ports) -> SweepCount:
    raise RuntimeError("broken")


@pytest.mark.django_db
def test_each_sweep_runs_at_its_own_period() -> None:
    stage = Stage(quick=Entry(counts(1), 1.0), slower=Entry(counts(1), 3.0))
    seen = []
    for _ in range(7):
        seen.append(stage.tick())
        stage.clock.advance(0.95)  # ticks are never exactly a second apart
    assert seen == [["quick", "slower"], ["quick"], ["quick"]] * 2 + [["quick", "slower"]]


@pytest.mark.django_db
def test_a_sweep_that_takes_long_skips_no_period_of_the_later_ones() -> None:
    def takes_long(ports: Ports) -> SweepCount:
        stage.clock.advance(0.6)
        return SweepCount()

    stage = Stage(first=Entry(takes_long, 1.0), second=Entry(counts(1), 1.0))
    for _ in range(3):
        assert stage.tick() == ["first", "second"]
        stage.clock.advance(0.4)


@pytest.mark.django_db
def test_a_failing_sweep_does_not_stop_the_others_and_its_age_grows() -> None:
    stage = Stage(broken=Entry(fails, 1.0), sound=Entry(counts(2), 1.0))
    assert stage.tick() == ["sound"]
    assert set(base.sweep_ages(stage.clock.now())) == {"sound", "tick"}


@pytest.mark.django_db
def test_a_process_whose_layout_is_not_in_use_leaves_the_index_to_others() -> None:
    layouts = Layouts(lambda: {"main": IndexState(6)}, layout=7)
    entries = {"of_index": Entry(counts(1), 1.0), "other": Entry(counts(1), 1.0, any_layout=True)}
    stage = Stage(layouts, **entries)
    assert stage.tick() == ["other"]


@pytest.mark.django_db
def test_a_slow_sweep_runs_in_a_thread_and_never_twice_at_once() -> None:
    stage = Stage(slow=Entry(counts(1), 1.0, slow=True), quick=Entry(counts(1), 1.0))
    assert stage.tick() == ["quick"]
    stage.clock.advance(5)
    assert stage.tick() == ["quick"]
    assert len(stage.threads) == 1
    assert stage.runner.run("slow") is None
    stage.threads.pop()()
    stage.clock.advance(5)
    stage.tick()
    assert len(stage.threads) == 1


@pytest.mark.django_db
def test_a_slow_sweep_that_is_not_needed_gets_no_thread() -> None:
    stage = Stage(slow=Entry(fails, 1.0, slow=True, is_needed=lambda _: False))
    assert stage.tick() == ["slow"]
    assert stage.threads == []


@pytest.mark.django_db
def test_a_question_that_sweeps_share_is_asked_once_a_tick() -> None:
    asked: list[Ports] = []

    def is_work(ports: Ports) -> bool:
        asked.append(ports)
        return len(asked) > 1

    stage = Stage(first=Entry(fails, 1.0, is_needed=is_work), second=Entry(counts(1), 1.0, is_needed=is_work))
    assert stage.tick() == ["first", "second"]
    stage.clock.advance(1)
    assert stage.tick() == ["second"]
    assert len(asked) == 2


@pytest.mark.django_db
@pytest.mark.parametrize("slow", [False, True])
def test_a_sweep_whose_question_fails_has_not_run(slow: bool) -> None:
    def is_away(_ports: Ports) -> bool:
        raise RuntimeError("broken")

    stage = Stage(quick=Entry(counts(1), 1.0, slow=slow, is_needed=is_away))
    assert stage.tick() == []
    assert stage.threads == []


@pytest.mark.django_db
def test_ages_are_written_every_five_seconds_with_the_sum_of_the_runs_since() -> None:
    stage = Stage(quick=Entry(counts(3), 1.0))
    stage.tick()
    first = SweepRun.objects.get(name="quick")
    for _ in range(4):
        stage.clock.advance(1)
        stage.tick()
    assert SweepRun.objects.get(name="quick").at == first.at
    assert base.sweep_ages(stage.clock.now())["quick"] == 4.0
    stage.clock.advance(1)
    stage.tick()
    row = SweepRun.objects.get(name="quick")
    assert (row.looked, row.repaired) == (15, 15)
    assert base.sweep_ages(stage.clock.now())["tick"] == 0.0


@pytest.mark.django_db
def test_a_new_process_writes_no_ages_before_its_clocks_are_compared() -> None:
    stage = Stage(one=Entry(counts(1), 1.0))
    clocks = WrongClocks(learning=True)
    stage.runner._ports = replace(stage.runner._ports, clock_watch=clocks)
    for _ in range(10):
        stage.tick()
        stage.clock.advance(1.0)
    assert not SweepRun.objects.exists()
    clocks.learning = False
    stage.tick()
    assert SweepRun.objects.exists()


@pytest.mark.django_db
def test_one_sweep_can_be_run_by_hand() -> None:
    stage = Stage(quick=Entry(counts(3), 60.0))
    assert stage.runner.run("quick") == SweepCount(3, 3)
    assert stage.runner.run("quick") == SweepCount(3, 3)
    with pytest.raises(KeyError):
        stage.runner.run("unknown")


@pytest.mark.django_db
def test_a_sweep_run_by_hand_does_not_reset_the_age_of_tick() -> None:
    stage = Stage(quick=Entry(counts(3), 60.0))
    stage.tick()
    stage.clock.advance(1)
    stage.tick()  # its row is not due for a write yet
    stage.clock.advance(600)
    stage.runner.run("quick")
    found = base.sweep_ages(stage.clock.now())
    assert (found["quick"], found["tick"]) == (0.0, 600.0)


@pytest.mark.django_db(transaction=True)
def test_a_slow_sweep_has_a_thread_and_a_database_connection_of_its_own() -> None:
    stage = Stage()
    seen: list[tuple[str, bool]] = []
    ended = threading.Event()

    def look(_ports: Ports) -> SweepCount:
        seen.append((threading.current_thread().name, SweepRun.objects.exists()))
        ended.set()
        return SweepCount()

    runner = Runner(stage.runner._ports, lambda: {"slow": Entry(look, 1.0, slow=True)})
    assert runner.tick() == {}
    assert ended.wait(30)
    assert seen[0][0] == "sweep"
    wait_for(  # its last write must not reach the next test
        lambda: not any(thread.name == "sweep" for thread in threading.enumerate()), what="its thread's end"
    )


def test_sweeps_are_run_by_name() -> None:
    runs: list[str] = []

    def quick(_: Ports) -> SweepCount:
        runs.append("quick")
        return SweepCount()

    stage = Stage(quick=Entry(quick, 1.0))
    run = stage.runner.run_named
    with patch("jobs.sweeps.runner.write_runs"):
        run("tick")
        run("tick")
        assert runs == ["quick"], "no sweep is due in the second tick"
        run("quick")
        assert runs == ["quick", "quick"]
        with pytest.raises(KeyError):
            run("unknown")


def test_a_bad_row_is_counted_and_the_others_are_repaired() -> None:
    def repair(row: int) -> bool:
        if row == 2:
            raise ValueError("bad row")
        return row == 3

    assert sweep_rows("s", [1, 2, 3], repair) == SweepCount(3, 1, 1)


def test_without_redis_the_remaining_rows_are_skipped_with_a_note() -> None:
    def repair(row: int) -> bool:
        if row == 2:
            raise LeasingUnavailable("gone")
        return True

    assert sweep_rows("s", [1, 2, 3], repair) == SweepCount(2, 1, 0, ("leases: gone",))


def test_one_fleet_without_redis_does_not_stop_the_others() -> None:
    def step(fleet: str) -> SweepCount:
        if fleet == "a":
            raise LeasingUnavailable("gone")
        if fleet == "b":
            raise ValueError("bad")
        return SweepCount(1, 1)

    assert sweep_groups("s", ["a", "b", "c"], step) == SweepCount(1, 1, 1, ("a: gone",))


def test_every_symptom_has_its_sweep() -> None:
    assert set(Sweeps().entries()) == {
        "cancelling",
        "checkpoint",
        "deadlines",
        "due_callbacks",
        "due_retries",
        "due_starts",
        "expired_leases",
        "fill",
        "fleet_time",
        "generation",
        "index_switch",
        "lock_sync",
        "long_waits",
        "mirror_registry",
        "orphans",
        "quarantine",
        "quotas",
        "reconcile",
        "refusals",
        "retention",
        "rollups",
        "silent_workers",
        "stray_attempts",
        # of workflows
        "cancelling_runs",
        "due_waits",
        "lost_ends",
        "erasing_runs",
        "due_schedules",
        "ended_firings",
        "old_firings",
        "old_runs",
        "old_signals",
        "inline_versions",
        "stalled_runs",
        "unread_notices",
        "unknown_objects",
        "unused_artifacts",
    }
