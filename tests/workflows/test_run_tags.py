"""Tags of runs: rows that lists by tag read, in place of all runs."""

from __future__ import annotations

import re
from importlib import import_module
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.db import connection
from django.utils import timezone

from foundation.ids import new_id
from jobs.models import Tenant
from tests.workflows.in_memory import Desk, desk
from workflows.models import Run, RunTag, Version, tags_of
from workflows.operations.start import start_run
from workflows.reports.runs import RunFilter

__all__ = ["desk"]
pytestmark = [pytest.mark.django_db, pytest.mark.database]
RUNS = 3_000


@pytest.fixture
def version(desk: Desk) -> Version:
    desk.put("w", {"nodes": {"x": {"model": "m", "payload": {}}}})
    return Version.objects.get()


def make_runs(version: Version, tenant: Tenant) -> list[Run]:
    """Make runs of which every thousandth has the tag rare, and the others common."""
    now = timezone.now()
    runs = [
        Run(
            id=new_id(now.timestamp()),
            version=version,
            tenant=tenant,
            place_us=0,
            created_at=now,
            tags=["rare" if number % 1_000 == 0 else "common"],
        )
        for number in range(RUNS)
    ]
    Run.objects.bulk_create(runs)
    RunTag.objects.bulk_create([tag for run in runs for tag in tags_of(run)])
    with connection.cursor() as cursor:
        for model in (Run, RunTag):
            cursor.execute(f"ANALYZE {model._meta.db_table}")
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")  # so few rows are read at once
    return runs


@pytest.mark.parametrize("of_tenant", [True, False])
@pytest.mark.parametrize("parent", [None, "any"])
def test_a_list_by_a_rare_tag_reads_no_other_runs(
    desk: Desk, version: Version, of_tenant: bool, parent: str | None
) -> None:
    make_runs(version, desk.tenant)
    rows = Run.objects.filter(tenant=desk.tenant) if of_tenant else Run.objects.all()
    wanted = RunFilter(tag="rare", parent=parent).of(rows, desk.tenant.pk if of_tenant else None)
    plan = wanted.order_by("-id")[:50].explain()
    assert len(wanted) == RUNS / 1_000
    if connection.vendor == "postgresql":
        assert "on one_row_per_run_and_tag" in plan.replace("using", "on"), plan
        assert re.search(r"Index Cond: .*\(id\)::text = \(u0.run_id\)::text", plan), plan
    else:
        assert "USING COVERING INDEX sqlite_autoindex_workflows_runtag_1 (tag=?" in plan, plan
        assert "id=?)" in plan, plan
        assert "TEMP B-TREE" not in plan, plan


def test_each_start_writes_the_tags_of_its_run(desk: Desk) -> None:
    desk.put("child", {"nodes": {"ask": {"human": {"title": "?", "form": {}}}}})
    desk.put("w", {"nodes": {"sub": {"workflow": "child"}}})
    run = start_run(desk.tenant.pk, "w", None, ports=desk.ports, tags=["a", "b", "a"]).run
    desk.advance(run)
    child = Run.objects.get(depth=1)
    rows = set(RunTag.objects.values_list("tag", "run", "tenant"))
    assert rows == {(tag, one.id, desk.tenant.pk) for tag in ("a", "b") for one in (run, child)}


def test_the_migration_writes_the_tags_of_earlier_runs(
    desk: Desk, version: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    migration = import_module("workflows.migrations.0015_fill_run_tags")
    monkeypatch.setattr(migration, "PAGE", 1_000)
    runs = make_runs(version, desk.tenant)
    Run.objects.filter(id=runs[0].id).update(tags=[])
    Run.objects.filter(id=runs[1].id).update(tags=["b", "a", "b"])
    RunTag.objects.all().delete()
    migration.fill(apps, SimpleNamespace(connection=connection))
    assert RunTag.objects.filter(tag="rare").count() == RUNS / 1_000 - 1
    assert set(RunTag.objects.filter(run=runs[1].id).values_list("tag", flat=True)) == {"a", "b"}
    assert RunTag.objects.count() == RUNS
