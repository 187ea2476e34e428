from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from django.db import IntegrityError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import ConnectionHandler

from dispatcher_project.settings.base import database
from tests.support.database_copies import MIGRATED, copy_to_file
from tests.support.system.running import drop_database, own_database

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def migrations(connection: BaseDatabaseWrapper) -> set[tuple[str, str]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT app, name FROM django_migrations")
        return set(cursor.fetchall())


def test_a_system_begins_migrated_and_keeps_its_audit_log(tmp_path: Path) -> None:
    """From the test process's own copy entries can be deleted."""
    if MIGRATED not in connections["default"].settings_dict["TEST"]:
        pytest.skip("only forked workers have an original")
    file = tmp_path / "var" / "db.sqlite3"
    theirs = own_database(migrated=True)
    if not theirs:
        copy_to_file(file)
    try:
        url = theirs.get("DATABASE_URL", f"sqlite:///{file}")
        with closing(ConnectionHandler({"default": database(url)})["default"]) as connection:
            assert migrations(connection) == migrations(connections["default"]) != set()
            with connection.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO gpus_auditentry (at, actor, action, target, detail)"
                    " VALUES (CURRENT_TIMESTAMP, 'cli:me', 'pause_model', 'model:m', '{}')"
                )
                with pytest.raises(IntegrityError, match="never deleted"):
                    cursor.execute("DELETE FROM gpus_auditentry")
    finally:
        drop_database(theirs)
