"""The migration of the largest table's index blocks no writer and can be repeated."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.test.utils import CaptureQueriesContext

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
BEFORE, IT = ("jobs", "0010_run_news_and_usage"), ("jobs", "0011_rare_events")


def run(direction: str) -> list[str]:
    """Run the migration forwards or backwards; return its statements about indexes."""
    loader = MigrationLoader(connection)
    migration: Any = loader.get_migration(*IT)
    state = loader.project_state(BEFORE)
    with CaptureQueriesContext(connection) as queries:  # noqa: SIM117 - the editor's last words count too
        with connection.schema_editor(atomic=migration.atomic) as editor:
            getattr(migration, direction)(state, editor)
    return [query["sql"] for query in queries if " INDEX " in query["sql"]]


def indexes() -> set[str]:
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, "jobs_event")
    return found.keys() & {"event_unusual_idx", "event_rare_idx"}


def test_the_new_index_exists_before_the_old_one_is_dropped_and_writers_continue() -> None:
    there = run("unapply")
    assert indexes() == {"event_unusual_idx"}
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:  # the remains of an interrupted index build
            cursor.execute("CREATE INDEX event_rare_idx ON jobs_event (at)")
    back = run("apply")
    assert indexes() == {"event_rare_idx"}
    for statements, added, removed in (
        (there, "event_unusual_idx", "event_rare_idx"),
        (back, "event_rare_idx", "event_unusual_idx"),
    ):
        creates = [n for n, sql in enumerate(statements) if sql.startswith("CREATE") and added in sql]
        drops = [n for n, sql in enumerate(statements) if sql.startswith("DROP") and removed in sql]
        assert [len(creates), len(drops)] == [1, 1]
        assert creates < drops
    if connection.vendor == "postgresql":
        assert all(" CONCURRENTLY " in sql for sql in there + back)
