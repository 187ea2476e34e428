"""Ids of tenants: files in the store and signed URLs are under them, also after the restore of an older
database."""

from __future__ import annotations

import pytest
from django.core.management.color import no_style
from django.db import connection

from jobs.models import Tenant

pytestmark = [pytest.mark.django_db, pytest.mark.database]
EXACT_IN_LUA = 10**14
"""Lua writes numbers with 14 digits."""


def forget(tenant: Tenant) -> None:
    """Bring the table, with its counter, to the time before the tenant was made, as a restore does."""
    tenant.delete()
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("DELETE FROM sqlite_sequence WHERE name = %s", [Tenant._meta.db_table])
        for statement in connection.ops.sequence_reset_sql(no_style(), [Tenant]):
            cursor.execute(statement)


def test_the_id_of_a_tenant_that_a_restored_database_does_not_know_never_comes_again() -> None:
    former = Tenant.objects.create(name="former")
    former_id = former.pk
    forget(former)
    assert Tenant.objects.create(name="new").pk > former_id


def test_ids_of_tenants_made_at_once_differ_and_are_exact_in_lua() -> None:
    made = Tenant.objects.bulk_create(Tenant(name=f"t{number}") for number in range(100))
    ids = [one.pk for one in made]
    assert ids == sorted(set(ids))
    assert ids[-1] < EXACT_IN_LUA
    assert set(Tenant.objects.values_list("pk", flat=True)) == set(ids)
