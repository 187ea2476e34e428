"""The Celery task that advances runs. `jobs.wakes` has its name, and publishes it."""

from __future__ import annotations

from functools import lru_cache

from celery import shared_task

from jobs import wakes
from workflows.execution.advancer import Advancer


@shared_task(name=wakes.FOLLOW, ignore_result=True, send_events=False)
def follow(follower: str) -> None:
    """Advance the run that follows ended jobs: a hint. follower: ``run:ID``."""
    kind, _, run_id = follower.partition(":")
    if kind == "run":
        advance_now(current_advancer(), run_id)


MAX_STEPS = 20
"""Transactions of one task; the rest is left to another one, so that no run holds a thread for long."""


def advance_now(advancer: Advancer, run_id: str) -> None:
    """Advance a run until nothing is left to do, at most `MAX_STEPS` transactions."""
    for _ in range(MAX_STEPS):
        if not advancer.advance(run_id):
            return
    advancer.ports.wake_followers([f"run:{run_id}"])


@lru_cache(maxsize=1)
def current_advancer() -> Advancer:
    """Return the advancer of this process."""
    from jobs.ports import production_ports

    return Advancer(production_ports())
