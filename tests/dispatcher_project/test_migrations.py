"""The committed migrations are those of the models, whatever the hash seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations import AddField, SeparateDatabaseAndState
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState
from django.db.models.fields import NOT_PROVIDED

pytestmark = [pytest.mark.django_db, pytest.mark.database]
OURS = {"artifacts", "gpus", "jobs", "schedules", "workflows"}
ONLY_NEW_CODE_INSERTS = {("workflows", "0002_run_keys", "run", "fingerprint")}
"""The table was new in the release that added the column."""


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


def test_older_processes_insert_beside_a_newer_schema():
    """During an upgrade they leave out the columns that they do not know."""
    refused = []
    for (app, name), migration in MigrationLoader(None, ignore_no_migrations=True).disk_migrations.items():
        if app not in OURS or migration.initial:
            continue
        for operation in _database_operations(migration.operations):
            if isinstance(operation, AddField):
                column = (app, name, operation.model_name, operation.name)
                if not _may_be_left_out(operation.field) and column not in ONLY_NEW_CODE_INSERTS:
                    refused.append(f"{'.'.join(column)} has neither null nor db_default")
    assert not refused


def _database_operations(operations: Iterable[Operation]) -> Iterator[Operation]:
    for operation in operations:
        if isinstance(operation, SeparateDatabaseAndState):
            yield from _database_operations(operation.database_operations)
        else:
            yield operation


def _may_be_left_out(field: Any) -> bool:
    return field.null or field.many_to_many or field.db_default is not NOT_PROVIDED


def _copies_table(app: str, operation: Operation, before: ProjectState, after: ProjectState) -> bool:
    editor = connection.schema_editor(collect_sql=True, atomic=False)
    editor.deferred_sql = []
    operation.database_forwards(app, editor, before, after)
    return any('"new__' in statement for statement in editor.collected_sql)
