"""Flower is shown which job a task runs, while it runs: the task's arguments know only its pool."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery import bootsteps, current_task

from gpus.protocol import Lease


class ShownRuns:
    """eventer: the consumer's dispatcher of events; a new one after each reconnect."""

    def __init__(self) -> None:
        self.eventer: Any = None

    def step(self) -> type[bootsteps.StartStopStep]:
        """Return the consumer step that keeps `eventer` current."""

        class KeepEventer(bootsteps.StartStopStep):  # type: ignore[misc]
            requires = ("celery.worker.consumer.events:Events",)

            def start(_step, consumer: Any) -> None:
                self.eventer = consumer.event_dispatcher

        return KeepEventer

    def show(self, lease: Lease) -> None:
        """Called in the task's thread; returns at once. Flower's columns are narrow, so the job stands in one
        and where it runs in another; its search finds both (``kwargs:job_id=…``, ``args:gpu-1``)."""
        if self.eventer is None or not current_task:
            return
        with suppress(Exception):  # the broker is away: the run matters, not who watches it
            self.eventer.send(
                "task-started",
                uuid=current_task.request.id,
                args=f"{lease.model} on {lease.slot}",
                kwargs=repr({"job_id": lease.job_id}),
            )
