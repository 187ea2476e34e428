"""Indexes of big tables, added and removed while others write: concurrently where the database can.

The migration must say ``atomic = False``, so that a failure may leave it half done: it can be run again. Its
other operations then are not in a transaction either: those that SQLite does by copying the table need
`in_transaction`.
"""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations
from django.db.migrations.operations.base import Operation


def in_transaction(operation: Operation) -> Operation:
    """Run an operation of a migration that is not atomic in a transaction of its own.

    SQLite alters most columns by copying the table. Without a transaction, what older processes write between
    the copy and the renaming is lost: a rolling upgrade lost ends of jobs so.
    """
    operation.atomic = True  # type: ignore[misc]
    return operation


def _is_concurrent(schema_editor: Any) -> bool:
    return bool(schema_editor.connection.vendor == "postgresql")


def _drop_leftover(schema_editor: Any, name: str) -> None:
    """A build that was cut short leaves an index that is invalid, and whose name is taken."""
    schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema_editor.quote_name(name)}")


class AddIndex(AddIndexConcurrently):
    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if _is_concurrent(schema_editor):
            self._ensure_not_in_transaction(schema_editor)
            _drop_leftover(schema_editor, self.index.name)
            super().database_forwards(app_label, schema_editor, from_state, to_state)
        else:
            migrations.AddIndex.database_forwards(self, app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        kind = AddIndexConcurrently if _is_concurrent(schema_editor) else migrations.AddIndex
        kind.database_backwards(self, app_label, schema_editor, from_state, to_state)


class RemoveIndex(RemoveIndexConcurrently):
    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if _is_concurrent(schema_editor):
            self._ensure_not_in_transaction(schema_editor)
            _drop_leftover(schema_editor, self.name)
        else:
            migrations.RemoveIndex.database_forwards(self, app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if _is_concurrent(schema_editor):
            self._ensure_not_in_transaction(schema_editor)
            _drop_leftover(schema_editor, self.name)
            super().database_backwards(app_label, schema_editor, from_state, to_state)
        else:
            migrations.RemoveIndex.database_backwards(self, app_label, schema_editor, from_state, to_state)
