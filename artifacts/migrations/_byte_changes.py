"""Triggers that write each change of a tenant's artifact bytes as a row of `artifacts_bytechange`, in the
transaction that changes them, whichever program does: also a process of the version before.

SQLite rebuilds a table that a migration alters, and so loses the table's triggers; it also refuses to rename
a table that triggers of another one name. A later migration of either table therefore begins with the
statements of `drop` and ends with `CountBytes`, which creates the triggers and corrects the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.migrations.operations.base import Operation

_NAMES = ("artifacts_count_new", "artifacts_count_changed", "artifacts_count_deleted")
_FUNCTION = "artifacts_count_bytes"
_CHANGED = " OR ".join(f"OLD.{one} IS DISTINCT FROM NEW.{one}" for one in ("tenant_id", "bytes", "removed_at"))

# with the owner's rights: a role that may write artifacts need not know this table
_POSTGRESQL = [
    f"""CREATE FUNCTION {_FUNCTION}() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$ BEGIN
    IF TG_OP <> 'INSERT' AND OLD.removed_at IS NULL THEN
        INSERT INTO artifacts_bytechange (tenant_id, bytes) VALUES (OLD.tenant_id, -OLD.bytes);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.removed_at IS NULL THEN
        INSERT INTO artifacts_bytechange (tenant_id, bytes) VALUES (NEW.tenant_id, NEW.bytes);
    END IF;
    RETURN NULL;
END $$""",
    *(
        f"CREATE TRIGGER {name} AFTER {deed} ON artifacts_artifact FOR EACH ROW {when} "
        f"EXECUTE FUNCTION {_FUNCTION}()"
        for name, deed, when in zip(
            _NAMES, ("INSERT", "UPDATE", "DELETE"), ("", f"WHEN ({_CHANGED})", ""), strict=True
        )
    ),
]
_PLUS = """INSERT INTO artifacts_bytechange (tenant_id, bytes)
    SELECT NEW.tenant_id, NEW.bytes WHERE NEW.removed_at IS NULL;"""
_MINUS = """INSERT INTO artifacts_bytechange (tenant_id, bytes)
    SELECT OLD.tenant_id, -OLD.bytes WHERE OLD.removed_at IS NULL;"""
_SQLITE = [
    f"CREATE TRIGGER {name} AFTER {deed} ON artifacts_artifact {when} BEGIN {body} END"
    for name, deed, when, body in (
        (_NAMES[0], "INSERT", "", _PLUS),
        (_NAMES[1], "UPDATE", f"WHEN {_CHANGED.replace('IS DISTINCT FROM', 'IS NOT')}", _MINUS + _PLUS),
        (_NAMES[2], "DELETE", "", _MINUS),
    )
]
_CORRECT = """INSERT INTO artifacts_bytechange (tenant_id, bytes)
SELECT tenant_id, SUM(bytes) FROM (
    SELECT tenant_id, bytes FROM artifacts_artifact WHERE removed_at IS NULL
    UNION ALL SELECT tenant_id, -bytes FROM artifacts_bytechange
) AS found GROUP BY tenant_id HAVING SUM(bytes) <> 0"""


def drop(vendor: str) -> Sequence[str]:
    """Statements after which changes are not written any more."""
    if vendor == "postgresql":
        triggers = [f"DROP TRIGGER IF EXISTS {name} ON artifacts_artifact" for name in _NAMES]
        return [*triggers, f"DROP FUNCTION IF EXISTS {_FUNCTION}()"]
    return [f"DROP TRIGGER IF EXISTS {name}" for name in _NAMES]


class CountBytes(Operation):
    """Write changes from now on, and correct the sums by the artifacts that are there."""

    reversible = True
    reduces_to_sql = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Models know nothing of it."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        vendor = schema_editor.connection.vendor
        create = _POSTGRESQL if vendor == "postgresql" else _SQLITE
        # in this order: PostgreSQL's CREATE TRIGGER waits for writers, and others wait for the commit
        for statement in (*drop(vendor), *create, _CORRECT):
            schema_editor.execute(statement, None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        for statement in drop(schema_editor.connection.vendor):
            schema_editor.execute(statement, None)

    def describe(self) -> str:
        return "Each change of the bytes of a tenant's artifacts is a row"
