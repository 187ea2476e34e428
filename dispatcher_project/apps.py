from __future__ import annotations

import os

from django.apps import AppConfig


class DispatcherProjectConfig(AppConfig):
    """The composition root; an app so that its commands are found."""

    name = "dispatcher_project"

    def ready(self) -> None:
        if "NOTIFY_SOCKET" in os.environ:  # somebody waits to hear how we are: `up` or systemd
            from .supervisor import celery_signs

            celery_signs.connect()
