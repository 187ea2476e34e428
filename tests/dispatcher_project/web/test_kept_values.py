"""What a thread's connection to SQLite remembers of long bodies."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections

from dispatcher_project.web.headers import Utf8Handler
from dispatcher_project.web.request_limits import MAX_KEPT_BYTES

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def answered(body_bytes: int) -> Any:
    """The connection of a thread that answered a request with such a body; None: it was closed."""
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/nowhere",
        "SERVER_NAME": "testserver",
        "SERVER_PORT": "80",
        "CONTENT_LENGTH": str(body_bytes),
        "CONTENT_TYPE": "application/json",
        "wsgi.input": io.BytesIO(b" " * body_bytes),
        "wsgi.url_scheme": "http",
    }
    connection.ensure_connection()
    Utf8Handler()(environ, lambda *_: None)
    try:
        return connection.connection
    finally:
        connection.close()


@pytest.mark.parametrize("body_bytes", [MAX_KEPT_BYTES, MAX_KEPT_BYTES + 1])
def test_a_long_body_closes_the_database_connection_that_keeps_its_values(
    monkeypatch: pytest.MonkeyPatch, body_bytes: int
) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 60)
    is_kept = body_bytes <= MAX_KEPT_BYTES or connection.vendor != "sqlite"
    with ThreadPoolExecutor(1) as thread:
        assert (thread.submit(answered, body_bytes).result() is not None) is is_kept
