"""The committed migrations are those of the models, whatever the hash seed."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

pytestmark = pytest.mark.django_db


def test_no_migration_is_missing():
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_sqlite_copies_tables_in_transactions_only():
    """Else what other processes write between the copy and the renaming is lost."""
    if connection.vendor != "sqlite":
        pytest.skip("other databases alter tables in place")
    loader = MigrationLoader(connection)
    unprotected = []
    for (app, name), migration in loader.graph.nodes.items():
        if migration.atomic:
            continue
        state = loader.project_state(migration.dependencies)
        for operation in migration.operations:
            before, state = state, state.clone()
            operation.state_forwards(app, state)
            if _copies_table(app, operation, before, state) and not operation.atomic:
                unprotected.append(f"{app}.{name}: {operation.describe()}")
    assert not unprotected


def _copies_table(app: str, operation: Operation, before: ProjectState, after: ProjectState) -> bool:
    editor = connection.schema_editor(collect_sql=True, atomic=False)
    editor.deferred_sql = []
    operation.database_forwards(app, editor, before, after)
    return any('"new__' in statement for statement in editor.collected_sql)
