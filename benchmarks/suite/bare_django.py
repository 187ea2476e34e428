"""A bare Django view that commits one row and answers 202: no API framework, no key, no checks, no queue.

Started with the same command as the dispatcher's web server (`submit.py`), on the same database, with the
same connection settings."""

from __future__ import annotations

import json
import os
import uuid
from typing import Any

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection, models
from django.http import HttpRequest, JsonResponse
from django.urls import path

from dispatcher_project.settings.base import database

settings.configure(
    SECRET_KEY=uuid.uuid4().hex,
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    DATABASES={"default": database(os.environ["DATABASE_URL"])},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)

application: Any = get_wsgi_application()


class Row(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    model = models.CharField(max_length=100)
    payload = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "bare"
        db_table = "bench_bare_row"

    def __str__(self) -> str:
        return str(self.id)


def submit(request: HttpRequest) -> JsonResponse:
    body = json.loads(request.body)
    row = Row(model=body["model"], payload=body["payload"])
    row.save(force_insert=True)
    return JsonResponse({"job_id": str(row.id)}, status=202)


urlpatterns = [path("submit", submit)]

if Row._meta.db_table not in connection.introspection.table_names():
    with connection.schema_editor() as editor:
        editor.create_model(Row)
connection.close()


def asgi() -> Any:
    """Return the application as dispatcher_project.asgi serves Django: with as many threads."""
    from a2wsgi import WSGIMiddleware

    return WSGIMiddleware(application, workers=16)
