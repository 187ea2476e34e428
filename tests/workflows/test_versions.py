"""Versions are never changed, by whatever way: their runs and the plans in memory rely on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection, models
from django.db.models import ProtectedError
from django.db.transaction import atomic

from tests.workflows.in_memory import ASK, Desk, desk
from workflows.models import Version, Workflow

__all__ = ["desk"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
FIRST, SECOND = {"nodes": {"a": ASK}}, {"nodes": {"b": ASK}}


def sql(text: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text, values)


@pytest.mark.parametrize("change", [
    lambda version: version.save(),
    lambda version: Version.objects.update(spec=SECOND),
    lambda version: Version.objects.bulk_update([version], ["spec"]),
    lambda version: Version.objects.update_or_create(pk=version.pk, defaults={"spec": SECOND}),
    lambda version: models.QuerySet(Version).filter(pk=version.pk).update(number=7),
    lambda version: sql("UPDATE workflows_version SET sha256 = '' WHERE id = %s", version.pk),
])  # fmt: skip
def test_a_version_is_never_changed(desk: Desk, change: Callable[[Any], Any]) -> None:
    desk.put("w", FIRST)
    version = Version.objects.get()
    version.spec = SECOND
    with pytest.raises(IntegrityError, match="a version of a workflow is never changed"), atomic():
        change(version)
    version.refresh_from_db()
    assert (version.spec, version.number) == (FIRST, 1)
    desk.put("w", SECOND)
    assert list(Version.objects.values_list("number", "spec")) == [(2, SECOND), (1, FIRST)]


def test_a_version_of_a_run_is_not_deleted(desk: Desk) -> None:
    run = desk.start(FIRST)
    with pytest.raises(ProtectedError):
        Workflow.objects.all().delete()
    with pytest.raises(IntegrityError), atomic():
        sql("DELETE FROM workflows_version WHERE id = %s", run.version_id)
    assert Version.objects.count() == 1


def test_a_workflow_without_runs_is_deleted_with_its_versions(desk: Desk) -> None:
    desk.put("w", FIRST)
    desk.put("w", SECOND)
    Workflow.objects.all().delete()
    desk.tenant.delete()
    assert not Version.objects.exists()
