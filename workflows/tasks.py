"""The Celery task that advances runs. `jobs.wakes` has its name, and publishes it."""

from __future__ import annotations

from functools import lru_cache

from celery import shared_task

from jobs import wakes
from workflows.execution.advancer import Advancer
from workflows.execution.due_runs import DueRuns


@shared_task(name=wakes.FOLLOW, ignore_result=True, send_events=False)
def follow(*followers: str) -> None:
    """Advance the runs that follow ended jobs: a hint. followers: ``run:ID``."""
    names = [follower.partition(":") for follower in followers]
    current_due_runs().wake([name for kind, _, name in names if kind == "run" and name])


MAX_STEPS = 20
"""Transactions of one call; the rest is left to a wake."""


def advance_now(advancer: Advancer, run_id: str) -> None:
    """Advance a run until nothing is left to do, at most `MAX_STEPS` transactions."""
    for _ in range(MAX_STEPS):
        if not advancer.advance(run_id):
            return
    advancer.ports.wake_followers([f"run:{run_id}"])


@lru_cache(maxsize=1)
def current_due_runs() -> DueRuns:
    """Return the due runs of this process."""
    from jobs.ports import production_ports

    return DueRuns(Advancer(production_ports()))
