"""Triggers that keep the rows of a table as they were written, whoever asks: ORM, SQL, another program.

On SQLite a migration that alters the table makes it anew, without its triggers: such a migration ends with this
operation again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.migrations.operations.base import Operation

DEEDS = {"UPDATE": "changed", "DELETE": "deleted"}

_SQLITE = """CREATE TRIGGER {name} BEFORE {deed} ON {table}
BEGIN SELECT RAISE(ABORT, '{what} is never {done}'); END"""
_POSTGRESQL = """CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION '{what} is never {done}' USING ERRCODE = 'integrity_constraint_violation'; END $$;
CREATE TRIGGER {name} BEFORE {deed} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()"""


def keep(vendor: str, table: str, deed: str, what: str) -> str:
    """SQL after which the deed is refused. deed: of `DEEDS`. what: a row, in words."""
    text = _POSTGRESQL if vendor == "postgresql" else _SQLITE
    return text.format(name=_name(table, deed), deed=deed, table=table, what=what, done=DEEDS[deed])


def let_go(vendor: str, table: str, deed: str) -> str:
    name = _name(table, deed)
    if vendor == "postgresql":
        return f"DROP TRIGGER IF EXISTS {name} ON {table}; DROP FUNCTION IF EXISTS {name}()"
    return f"DROP TRIGGER IF EXISTS {name}"


class AppendOnly(Operation):
    reversible = True
    reduces_to_sql = True

    def __init__(self, table: str, what: str, deeds: Sequence[str] = tuple(DEEDS)) -> None:
        self.table, self.what, self.deeds = table, what, deeds

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Models know nothing of it."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        vendor = schema_editor.connection.vendor
        for deed in self.deeds:
            schema_editor.execute(let_go(vendor, self.table, deed))
            schema_editor.execute(keep(vendor, self.table, deed, self.what))

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        for deed in self.deeds:
            schema_editor.execute(let_go(schema_editor.connection.vendor, self.table, deed))

    def describe(self) -> str:
        return f"Rows of {self.table} are never {' or '.join(DEEDS[deed] for deed in self.deeds)}"


def _name(table: str, deed: str) -> str:
    return f"{table}_never_{DEEDS[deed]}"
