"""The ASGI application, which `dispatcher_project.wiring` puts together."""

from __future__ import annotations

import os
import sys
from typing import Any

import django

from dispatcher_project.celery_transport.gc_tuning import loaded_for_good

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dispatcher_project.settings.production")

SWITCH_SECONDS = 0.0005
"""Longest time that a computing thread keeps the interpreter. A submit releases it at each statement; with
Python's 5 ms it would wait for a time slice of every computing thread."""


def make_application() -> Any:
    """Return a new ASGI application; one per event loop."""
    django.setup(set_prefix=False)

    from dispatcher_project.wiring import make_gateway

    sys.setswitchinterval(SWITCH_SECONDS)
    return make_gateway()


with loaded_for_good():
    application = make_application()
