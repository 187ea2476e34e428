from __future__ import annotations

import os
from typing import Any

from django.apps import AppConfig

from dispatcher_project.supervisor.notify import READY, notify


class DispatcherProjectConfig(AppConfig):
    """The composition root; an app so that its commands are found."""

    name = "dispatcher_project"

    def ready(self) -> None:
        if "NOTIFY_SOCKET" in os.environ:  # somebody waits to hear how we are: `up` or systemd
            from celery import signals

            # a worker is ready when it takes tasks, beat when it begins (schedule.py says that beat is alive)
            signals.worker_ready.connect(_notify_ready, weak=False)
            signals.beat_init.connect(_notify_ready, weak=False)


def _notify_ready(**_: Any) -> None:
    notify(READY)
