"""Processes of fibers: who is killed, when, and whom that does not concern."""

from __future__ import annotations

from dispatcher_project.simulation.scheduler import Process, Scheduler


def test_a_process_may_be_killed_before_its_first_step() -> None:
    scheduler, victim, seen = Scheduler(1), Process("victim"), []

    def kill() -> None:
        scheduler.spawn(victim, lambda: seen.append("ran"))
        scheduler.kill(victim)
        seen.append("killed")

    scheduler.spawn(Process("killer"), kill)
    scheduler.run(1.0)
    assert seen == ["killed"]


def test_a_history_may_end_before_somebody_began() -> None:
    scheduler, seen = Scheduler(1), []
    scheduler.spawn(Process("late"), lambda: seen.append("ran"))
    scheduler.end()
    assert seen == []
