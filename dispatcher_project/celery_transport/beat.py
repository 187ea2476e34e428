"""``python -m dispatcher_project.celery_transport.beat``: Celery's beat with our scheduler (`schedule.py`).

Neither Celery's command line, which imports a shell and Flower, nor Django's apps are loaded: beat runs no
task. Its start takes a third of the CPU time."""

from __future__ import annotations

from celery import signals
from celery.apps.beat import Beat
from django.conf import settings
from django.utils.log import configure_logging

from dispatcher_project.apps import notify_ready
from dispatcher_project.celery import app


class BeatWithoutTasks(Beat):  # type: ignore[misc]
    def init_loader(self) -> None:
        """Celery imports all tasks here, and Django's apps before them."""
        self.app.finalize()


def main() -> None:
    configure_logging(settings.LOGGING_CONFIG, settings.LOGGING)
    signals.beat_init.connect(notify_ready)
    BeatWithoutTasks(app=app).run()


if __name__ == "__main__":
    main()
