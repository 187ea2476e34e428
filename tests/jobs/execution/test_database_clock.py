"""The database's time, read from any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from jobs.models import SweepRun
from jobs.reports.database_clock import database_time, last_database_time

pytestmark = pytest.mark.database


def in_a_thread(ask: Callable[[], float | None]) -> float | None:
    seen: list[float | None] = []
    thread = threading.Thread(target=lambda: seen.append(ask()))
    thread.start()
    thread.join()
    return seen[0]


@pytest.mark.django_db
def test_postgresql_has_a_clock_and_sqlite_has_none() -> None:
    seen = in_a_thread(database_time)
    if connection.vendor == "sqlite":
        assert seen is None
    else:
        assert seen is not None
        assert abs(seen - time.time()) < 5.0


@pytest.mark.django_db(transaction=True)
def test_the_latest_time_that_a_sweep_wrote() -> None:
    assert in_a_thread(last_database_time) is None
    at = datetime(2026, 1, 1, 12, 0, 0, 250_000, tzinfo=UTC)
    SweepRun.objects.create(name="tick", at=at)
    SweepRun.objects.create(name="retention", at=at - timedelta(hours=1))
    assert in_a_thread(last_database_time) == at.timestamp()
