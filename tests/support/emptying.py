"""How the database becomes empty again after a test that committed.

Django's own way truncates every table, which takes PostgreSQL tenths of a second, and then writes content
types, permissions and groups anew. Hundreds of tests commit.
"""

from __future__ import annotations

from functools import cache

from django.db import connections, transaction
from django.test import TransactionTestCase

from gpus.migrations import _append_only

_WRITTEN_BY_MIGRATE = {"django_content_type", "auth_permission", "auth_group", "auth_group_permissions"}


def let_be_emptied(alias: str) -> None:
    """The one thing in which a test's database is weaker than ours: audit entries can be deleted from it."""
    connection = connections[alias]
    with connection.cursor() as cursor:
        cursor.execute(_append_only.let_go(connection.vendor, "gpus_auditentry", "DELETE"))


def end_other_sessions(alias: str) -> None:
    """Threads that outlive their tests keep theirs, and PostgreSQL drops no database that is in use."""
    connection = connections[alias]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


def delete_rows(case: TransactionTestCase) -> None:
    """In place of `TransactionTestCase._fixture_teardown`."""
    for alias in case._databases_names(include_mirrors=False):  # type: ignore[attr-defined]
        # keys to other tables are checked when it commits: any order does
        with transaction.atomic(alias), connections[alias].cursor() as cursor:
            for statement in _statements(alias):
                cursor.execute(statement)


@cache
def _statements(alias: str) -> list[str]:
    """One where the database takes several at a time."""
    connection = connections[alias]
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    deletes = [
        f"DELETE FROM {connection.ops.quote_name(table)}"
        for table in sorted(tables)
        if table not in _WRITTEN_BY_MIGRATE
    ]
    return ["; ".join(deletes)] if connection.vendor == "postgresql" else deletes
