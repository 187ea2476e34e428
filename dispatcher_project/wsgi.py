"""The whole site for a WSGI server (gunicorn, granian). Long polls answer at once here and `/events` answers
what happened so far: send those two to the ASGI application."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

from dispatcher_project.heap import loaded_for_good

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dispatcher_project.settings.production")

with loaded_for_good():
    application = get_wsgi_application()
