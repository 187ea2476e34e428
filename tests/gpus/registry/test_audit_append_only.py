"""Audit entries can be written and read, but not changed or deleted through the ORM."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import IntegrityError, connection, models
from django.db.transaction import atomic

from gpus.models import AuditEntry
from gpus.registry.audit import record

pytestmark = [pytest.mark.django_db, pytest.mark.database]


@pytest.fixture
def kept_by_the_database(db: None) -> None:
    """As the migration leaves it: the tests' database has let go of a part (`tests.support.emptying`)."""
    (keeping,) = import_module("gpus.migrations.0006_audit_append_only").Migration.operations
    keeping.database_forwards("gpus", SimpleNamespace(connection=connection, execute=sql), None, None)


def sql(text: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text, values)


@pytest.mark.parametrize("deed", [
    lambda entry: AuditEntry.objects.update(actor="nobody"),
    lambda entry: AuditEntry.objects.filter(pk=entry.pk).update(detail={}),
    lambda entry: AuditEntry.objects.all().delete(),
    lambda entry: AuditEntry.objects.filter(pk=entry.pk)._raw_delete("default"),
    lambda entry: AuditEntry._base_manager.all().delete(),
    lambda entry: AuditEntry._default_manager.update(actor="nobody"),
    lambda entry: AuditEntry.objects.bulk_update([entry], ["actor"]),
    lambda entry: AuditEntry.objects.update_or_create(pk=entry.pk, defaults={"actor": "nobody"}),
    lambda entry: AuditEntry.objects.bulk_create(
        [entry], update_conflicts=True, update_fields=["actor"], unique_fields=["id"]
    ),
    lambda entry: entry.save(),
    lambda entry: AuditEntry(pk=entry.pk, at=entry.at, actor="nobody").save_base(raw=True),  # as a fixture is
    lambda entry: models.QuerySet(AuditEntry).update(actor="nobody"),
    lambda entry: sql("UPDATE gpus_auditentry SET actor = 'nobody' WHERE id = %s", entry.pk),
    lambda entry: sql("DELETE FROM gpus_auditentry WHERE id = %s", entry.pk),
    lambda entry: models.QuerySet(AuditEntry)._raw_delete("default"),
    lambda entry: entry.delete(),
])  # fmt: skip
def test_audit_entries_cannot_be_changed_or_deleted(
    kept_by_the_database: None, deed: Callable[[Any], Any]
) -> None:
    record("key:abc", "revoke_key", "key:def", tenant="acme")
    entry = AuditEntry.objects.get()
    entry.actor = "nobody"
    with pytest.raises((TypeError, IntegrityError), match="never"), atomic():
        deed(entry)
    assert list(AuditEntry.objects.values_list("actor", "detail")) == [("key:abc", {"tenant": "acme"})]


def test_an_entry_with_an_existing_key_is_refused() -> None:
    record("key:abc", "revoke_key", "key:def")
    entry = AuditEntry.objects.get()
    with pytest.raises(IntegrityError, match=r"(?i)unique"), atomic():
        AuditEntry(pk=entry.pk, at=entry.at, actor="nobody").save()
    assert AuditEntry.objects.get().actor == "key:abc"


def test_tests_disable_only_the_protection_against_deletion() -> None:
    """After all migrations: one that recreates the table on SQLite would lose the triggers."""
    record("key:abc", "revoke_key", "key:def")
    with pytest.raises(IntegrityError, match="never changed"), atomic():
        sql("UPDATE gpus_auditentry SET actor = 'nobody'")
