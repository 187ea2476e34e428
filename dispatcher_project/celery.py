"""The Celery app: carries wakes to GPU workers, ticks to sweeps, hints to the callbacks worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import setup_logging
from django.conf import settings

from dispatcher_project.celery_transport.broker import register_transports
from dispatcher_project.settings.celery import broker_url, celery_settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dispatcher_project.settings.production")
os.environ.setdefault("FLOWER_CONF", str(Path(__file__).parent / "celery_transport" / "flower_config.py"))

os.environ.setdefault("CELERY_SKIP_CHECKS", "1")  # Django's checks would import all views in each process
if given := os.environ.get("CELERY_BROKER_URL"):
    # the `celery` command sets it from BROKER_URL and prefers it to our settings; kombu has no unix://
    os.environ["CELERY_BROKER_URL"] = broker_url(given)

register_transports()

app = Celery(
    "dispatcher",
    amqp="dispatcher_project.celery_transport.broker:Amqp",
    events="dispatcher_project.celery_transport.events:Events",
)
app.add_defaults(  # read when the first of them is asked for
    lambda: celery_settings(settings.BROKER_URL, sentinel_master=settings.BROKER_SENTINEL_MASTER)
)


@setup_logging.connect
def leave_logging_alone(**_: Any) -> None:
    """Keep Django's LOGGING: Celery sets up no logging if this signal has a receiver."""
