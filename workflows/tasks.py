"""The Celery task that advances runs. `jobs.wakes` has its name, and publishes it."""

from __future__ import annotations

from celery import shared_task

from jobs import wakes
from jobs.tasks import RoleTask
from workflows.execution.advancer import Advancer
from workflows.execution.due_runs import DueRuns


@shared_task(base=RoleTask, bind=True, name=wakes.FOLLOW, ignore_result=True, send_events=False)
def follow(self: RoleTask[DueRuns], *followers: str) -> None:
    """Advance the runs that follow ended jobs: a hint. followers: ``run:ID``."""
    names = [follower.partition(":") for follower in followers]
    self.role.wake([name for kind, _, name in names if kind == "run" and name])


MAX_STEPS = 20
"""Transactions of one call; the rest is left to a wake."""


def advance_now(advancer: Advancer, run_id: str) -> None:
    """Advance a run until nothing is left to do, at most `MAX_STEPS` transactions."""
    for _ in range(MAX_STEPS):
        if not advancer.advance(run_id):
            return
    advancer.ports.wake_followers([f"run:{run_id}"])
