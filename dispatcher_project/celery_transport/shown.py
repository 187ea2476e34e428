"""Flower is shown which job a task runs, while it runs: the task's arguments know only its pool."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery import bootsteps, current_task

from gpus.protocol import Lease

_eventer: Any = None
"""The consumer's dispatcher of events; a new one after each reconnect."""


class ShownRuns(bootsteps.StartStopStep):  # type: ignore[misc]
    """Knows through what this worker's events leave."""

    requires = ("celery.worker.consumer.events:Events",)

    def start(self, consumer: Any) -> None:
        global _eventer
        _eventer = consumer.event_dispatcher


def show_run(lease: Lease) -> None:
    """Called in the task's thread; returns at once. Flower's columns are narrow, so the job stands in one and
    where it runs in another; its search finds both (``kwargs:job_id=…``, ``args:gpu-1``)."""
    if _eventer is None or not current_task:
        return
    with suppress(Exception):  # the broker is away: the run matters, not who watches it
        _eventer.send(
            "task-started",
            uuid=current_task.request.id,
            args=f"{lease.model} on {lease.slot}",
            kwargs=repr({"job_id": lease.job_id}),
        )
