"""Processes of fibers: kills, stops, and the order of steps."""

from __future__ import annotations

from verification.simulation.scheduler import Process, Scheduler


def test_a_process_may_be_killed_before_its_first_step() -> None:
    scheduler, victim, seen = Scheduler(1), Process("victim"), []

    def kill() -> None:
        scheduler.spawn(victim, lambda: seen.append("ran"))
        scheduler.kill(victim)
        seen.append("killed")

    scheduler.spawn(Process("killer"), kill)
    scheduler.run(1.0)
    assert seen == ["killed"]


def test_a_history_may_end_before_a_fiber_began() -> None:
    scheduler, seen = Scheduler(1), []
    scheduler.spawn(Process("late"), lambda: seen.append("ran"))
    scheduler.end()
    assert seen == []


def test_fibers_due_at_the_same_moment_run_in_order_of_registration() -> None:
    scheduler, seen = Scheduler(1), []

    def one(name: str) -> None:
        for _ in range(2):
            scheduler.sleep(0.25)
            seen.append((scheduler.now, name))

    for name in "ab":
        scheduler.spawn(Process(name), lambda name=name: one(name))
    scheduler.run(1.0)
    assert seen == [(0.25, "a"), (0.25, "b"), (0.5, "a"), (0.5, "b")]


def test_a_lone_fiber_does_not_run_past_the_end_of_the_step() -> None:
    scheduler, seen = Scheduler(1), []

    def work() -> None:
        while True:
            scheduler.sleep(0.5)
            seen.append(scheduler.now)

    scheduler.spawn(Process("alone"), work)
    scheduler.run(1.2)
    assert (seen, scheduler.now) == ([0.5, 1.0], 1.2)
    scheduler.run(1.6)
    assert seen == [0.5, 1.0, 1.5]
    scheduler.end()


def test_alone_a_fiber_stops_where_its_process_is_stopped() -> None:
    scheduler, process, seen = Scheduler(1), Process("alone"), []
    process.stops_after = 2

    def work() -> None:
        for number in range(3):
            scheduler.point("step")
            seen.append(number)

    scheduler.spawn(process, work)
    scheduler.run(1.0)
    assert (seen, process.stopped) == ([0], True)
    scheduler.resume(process)
    scheduler.run(2.0)
    assert seen == [0, 1, 2]
