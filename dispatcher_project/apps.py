from __future__ import annotations

import os
from typing import Any

from django.apps import AppConfig

from dispatcher_project.supervisor.notify import READY, notify


class DispatcherProjectConfig(AppConfig):
    """The composition root; a Django app, so that its management commands are found."""

    name = "dispatcher_project"

    def ready(self) -> None:
        if "NOTIFY_SOCKET" in os.environ:  # `up` or systemd waits for readiness
            from celery import signals

            # a worker is ready when it takes tasks, beat at its start (schedule.py reports beat's liveness)
            signals.worker_ready.connect(notify_ready, weak=False)
            signals.beat_init.connect(notify_ready, weak=False)


def notify_ready(**_: Any) -> None:
    notify(READY)
