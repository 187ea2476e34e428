"""The WSGI application, for servers such as gunicorn and granian. Here long polls answer at once, and
`/events` returns only past events: route both to the ASGI application."""

from __future__ import annotations

import os

import django

from dispatcher_project.celery_transport.gc_tuning import loaded_for_good

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dispatcher_project.settings.production")

with loaded_for_good():
    django.setup(set_prefix=False)

    from dispatcher_project.web.headers import Utf8Handler

    application = Utf8Handler()
