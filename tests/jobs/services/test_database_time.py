"""The database's own clock, asked from any thread."""

from __future__ import annotations

import threading
import time

import pytest
from django.db import connection

from jobs.services.ports import database_time


@pytest.mark.django_db
def test_postgresql_has_a_clock_and_sqlite_has_none() -> None:
    told: list[float | None] = []
    thread = threading.Thread(target=lambda: told.append(database_time()))
    thread.start()
    thread.join()
    if connection.vendor == "sqlite":
        assert told == [None]
    else:
        assert told[0] is not None
        assert abs(told[0] - time.time()) < 5.0
