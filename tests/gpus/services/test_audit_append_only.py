"""An audit entry is written and read; no way through the ORM changes or removes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpus.models import AuditEntry
from gpus.services.audit import record

pytestmark = pytest.mark.django_db


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
    lambda entry: entry.delete(),
])  # fmt: skip
def test_nothing_changes_or_removes_an_entry(deed: Callable[[Any], Any]) -> None:
    record("key:abc", "revoke_key", "key:def", tenant="acme")
    entry = AuditEntry.objects.get()
    entry.actor = "nobody"
    with pytest.raises(TypeError, match="never"):
        deed(entry)
    assert list(AuditEntry.objects.values_list("actor", "detail")) == [("key:abc", {"tenant": "acme"})]
