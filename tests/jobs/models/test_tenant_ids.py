"""Ids of tenants: files in the store and signed URLs are under them, also after the restore of an older
database."""

from __future__ import annotations

import pytest
from django.core.management.color import no_style
from django.db import IntegrityError, connection, transaction

from jobs.models import Tenant
from jobs.models import tenant as tenant_models
from jobs.operations.tenants import create_tenant

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


def test_the_id_of_a_tenant_missing_in_a_restored_database_is_never_given_again() -> None:
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


def test_an_id_that_is_taken_is_replaced_by_the_next_one() -> None:
    """Of another process in the same millisecond, or of the time before the clock was set back."""
    taken = Tenant.objects.create(name="first").pk
    Tenant.objects.create(name="second", pk=taken + 1)
    third = Tenant(name="third", pk=taken)
    third.save()
    assert third.pk == taken + 2
    assert set(Tenant.objects.values_list("name", "pk")) == {
        ("first", taken),
        ("second", taken + 1),
        ("third", taken + 2),
    }


def test_a_taken_name_is_refused_and_makes_no_row() -> None:
    first = Tenant.objects.create(name="first")
    for pk in (first.pk, first.pk + 1):
        with pytest.raises(IntegrityError), transaction.atomic():
            Tenant(name="first", pk=pk).save()
    assert Tenant.objects.get() == first


def test_a_tenant_with_a_taken_id_is_created_by_its_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Tenant.objects.create(name="first").pk
    monkeypatch.setattr(tenant_models._ids, "new", lambda: taken)
    tenant, _ = create_tenant("second")
    assert tenant.pk == taken + 1
