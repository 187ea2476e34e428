"""What uvicorn runs: Django in a few threads, and what waits (streams, long polls) on the event loop."""

from __future__ import annotations

import os
from typing import Any, cast

from a2wsgi import WSGIMiddleware
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dispatcher_project.settings.production")

WSGI_THREADS = 16


def make_application() -> Any:
    """One per event loop: the hub belongs to it."""
    site = WSGIMiddleware(cast("Any", get_wsgi_application()), workers=WSGI_THREADS)

    from django.conf import settings

    from jobs.api.front import AsyncFront
    from jobs.events.hub import EventHub

    return AsyncFront(cast("Any", site), lambda: EventHub(settings.REDIS_URL))


application = make_application()
