"""A tenant's bytes are the sum of changes that triggers write: it is that of its artifacts at each moment."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.models import Sum
from django.test.utils import CaptureQueriesContext

from artifacts import uploads
from artifacts.errors import ArtifactQuotaFull
from artifacts.migrations._byte_changes import CountBytes
from artifacts.models import Artifact, ByteChange
from artifacts.outputs import Maker, SavedOutput, Secured, new_output, record
from artifacts.quota import merge_changes, used_bytes
from artifacts.uploads import Wanted, promise
from foundation.ids import new_id
from jobs.ports import Ports
from tests.support.fakes import make_ports

pytestmark = pytest.mark.database

NOW = datetime(2026, 5, 1, tzinfo=UTC)
NEW = {"created_at": NOW, "expires_at": NOW + timedelta(days=1)}


def artifact(number: int, size: int, tenant_id: int = 7, **values: Any) -> Artifact:
    digest = f"{number:064x}"
    return Artifact(id=new_id(), tenant_id=tenant_id, sha256=digest, bytes=size, **{**NEW, **values})


def sum_of_rows(tenant_id: int) -> int:
    rows = Artifact.objects.filter(tenant_id=tenant_id, removed_at=None)
    return rows.aggregate(bytes=Sum("bytes"))["bytes"] or 0


@pytest.fixture
def ports() -> Ports:
    return make_ports()


@pytest.fixture
def limit(settings: Any) -> Callable[[int], None]:
    def set_limit(most: int) -> None:
        changed = replace(settings.DISPATCHER, tenant_artifact_bytes=most, artifact_reserve_bytes=0)
        settings.DISPATCHER = changed

    return set_limit


def sql(text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text)


def insert_as_before() -> None:
    """As a process of the version before, which has no code for the changes."""
    sql(
        "INSERT INTO artifacts_artifact (id, tenant_id, sha256, bytes, content_type, name, state, "
        "made_by_job, made_by_attempt, made_by_key, upload, created_at, expires_at) "
        "VALUES ('x', 7, 'y', 40, '', '', 'stored', '', '', '', '', '2026-05-01 00:00:00', "
        "'2026-05-01 00:00:00')"
    )


def insert_and_roll_back() -> None:
    with transaction.atomic():
        artifact(9, 1000).save()
        transaction.set_rollback(True)


def insert_twice() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        artifact(1, 60).save(force_insert=True)


def change(**values: Any) -> Callable[[], object]:
    return lambda: Artifact.objects.filter(tenant_id=7).update(**values)


DEEDS: dict[str, tuple[Callable[[], object], int]] = {
    "insert": (lambda: artifact(3, 30).save(), 130),
    "insert many": (lambda: Artifact.objects.bulk_create([artifact(3, 30), artifact(4, 5)]), 135),
    "insert what is there": (
        lambda: Artifact.objects.bulk_create([artifact(1, 60), artifact(3, 1)], ignore_conflicts=True),
        101,
    ),
    "insert twice": (insert_twice, 100),
    "insert a removed one": (lambda: artifact(3, 30, state="gone", removed_at=NOW).save(), 100),
    "insert by an older process": (insert_as_before, 140),
    "roll back": (insert_and_roll_back, 100),
    "other length": (lambda: Artifact.objects.filter(bytes=60).update(bytes=11), 51),
    "other state": (change(state="stored", stored_at=NOW, expires_at=NOW), 100),
    "gone, not yet removed": (change(state="gone"), 100),
    "removed": (change(state="gone", removed_at=NOW), 0),
    "removed again": (
        lambda: [change(state="gone", removed_at=NOW)(), change(removed_at=NEW["expires_at"])()],
        0,
    ),
    "back again": (lambda: [change(state="gone", removed_at=NOW)(), change(removed_at=None)()], 100),
    "other tenant": (change(tenant_id=9), 0),
    "delete": (lambda: Artifact.objects.filter(bytes=60).delete(), 40),
    "delete a removed one": (
        lambda: [change(state="gone", removed_at=NOW)(), Artifact.objects.all().delete()],
        0,
    ),
    "delete by SQL": (lambda: sql("DELETE FROM artifacts_artifact WHERE bytes = 40"), 60),
}  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize("name", DEEDS)
def test_each_way_to_change_artifacts_changes_their_sum(name: str) -> None:
    Artifact.objects.bulk_create([artifact(1, 60), artifact(2, 40), artifact(1, 5, tenant_id=8)])
    deed, used = DEEDS[name]
    deed()
    assert (used_bytes(7), sum_of_rows(7)) == (used, used)
    assert {one: used_bytes(one) for one in (8, 9)} == {one: sum_of_rows(one) for one in (8, 9)}


@pytest.mark.django_db
def test_merged_changes_are_one_row_with_their_sum() -> None:
    for number in range(11):
        artifact(number, 10 + number).save()
    artifact(1, 7, tenant_id=8).save()
    Artifact.objects.filter(tenant_id=8).delete()
    merge_changes(at_once=3)
    assert list(ByteChange.objects.values_list("tenant_id", "bytes")) == [(7, sum_of_rows(7))]
    with CaptureQueriesContext(connection) as queries:
        merge_changes()
    assert len(queries) == 1, "a tenant with one row is left alone"


@pytest.mark.django_db(transaction=True)
def test_savers_removers_and_mergers_at_the_same_time_lose_and_double_no_byte() -> None:
    def save(first: int) -> None:
        for number in range(first, first + 20):
            artifact(number, 1 + number).save()

    def remove(first: int) -> None:
        for number in range(first, first + 20):
            rows = Artifact.objects.filter(sha256=f"{number:064x}")
            rows.update(state="gone", removed_at=NOW)
            rows.delete()

    def merge(_: int) -> None:
        for _ in range(20):
            merge_changes()

    def in_thread(work: Callable[[int], None], first: int) -> None:
        try:
            work(first)
        finally:
            connection.close()

    save(0)
    with ThreadPoolExecutor(5) as threads:
        steps = [(save, 100), (save, 200), (remove, 0), (merge, 0), (merge, 0)]
        for done in [threads.submit(in_thread, *step) for step in steps]:
            done.result()
    assert used_bytes(7) == sum_of_rows(7) == sum(range(101, 121)) + sum(range(201, 221))
    merge_changes()
    assert ByteChange.objects.get().bytes == sum_of_rows(7)


@pytest.mark.django_db(transaction=True)
def test_a_merger_leaves_changes_that_another_one_is_merging() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has one writer")

    def merge() -> None:
        try:
            merge_changes()
        finally:
            connection.close()

    for number in range(4):
        artifact(number, 10).save()
    with ThreadPoolExecutor(1) as threads, transaction.atomic():
        rows = ByteChange.objects.select_for_update().order_by("pk")[:2]
        assert len(rows) == 2
        threads.submit(merge).result(timeout=30)
        assert sorted(ByteChange.objects.values_list("bytes", flat=True)) == [10, 10, 20]
        assert used_bytes(7) == 40


@pytest.mark.django_db(transaction=True)
def test_the_migration_counts_the_artifacts_that_are_there() -> None:
    loader = MigrationLoader(connection)
    migration: Any = loader.get_migration("artifacts", "0005_byte_changes")
    state = loader.project_state(("artifacts", "0004_run_upload_of_tenant"))
    with connection.schema_editor(atomic=migration.atomic) as editor:
        migration.unapply(state.clone(), editor)
    try:
        assert "artifacts_bytechange" not in connection.introspection.table_names()
        Artifact.objects.bulk_create([artifact(1, 60), artifact(2, 40, tenant_id=8)])
        artifact(3, 1000, state="gone", removed_at=NOW).save()
    finally:
        with connection.schema_editor(atomic=migration.atomic) as editor:
            migration.apply(state.clone(), editor)
    artifact(4, 5).save()
    assert (used_bytes(7), used_bytes(8), ByteChange.objects.count()) == (65, 40, 3)


@pytest.mark.django_db(transaction=True)
def test_a_later_migration_can_repeat_the_operation_which_corrects_the_sums() -> None:
    artifact(1, 60).save()
    ByteChange.objects.create(tenant_id=7, bytes=-13)
    ByteChange.objects.create(tenant_id=8, bytes=5)
    with connection.schema_editor() as editor:
        CountBytes().database_forwards("artifacts", editor, None, None)
    artifact(2, 3).save()
    assert (used_bytes(7), used_bytes(8)) == (63, 0)


@pytest.mark.django_db
def test_a_role_that_may_write_artifacts_needs_no_right_to_the_changes() -> None:
    """Rights were given before the upgrade that brought them."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no roles")
    sql("CREATE ROLE artifacts_only")
    sql("GRANT SELECT, INSERT, UPDATE, DELETE ON artifacts_artifact TO artifacts_only")
    sql("SET LOCAL ROLE artifacts_only")
    artifact(1, 60).save()
    sql("RESET ROLE")
    assert used_bytes(7) == 60


@pytest.mark.django_db
def test_a_check_of_the_quota_reads_no_sum_of_artifacts(ports: Ports) -> None:
    """It took 12 to 17 ms of PostgreSQL's time, and 7 of SQLite's, with 100,000 of them."""
    with CaptureQueriesContext(connection) as queries:
        promise(Wanted(7, "a" * 64, 10), ports.artifact_store, NOW)
        new_output(7, "attempt", "b" * 64, 10, now=NOW)
    sums = [query["sql"] for query in queries if "SUM(" in query["sql"]]
    assert len(sums) == 4, "the bytes and the reservations, twice"
    assert [one for one in sums if 'SUM("artifacts_artifact"' in one] == []


@pytest.mark.django_db
def test_the_room_of_a_promise_of_another_length_is_free_for_its_successor(
    ports: Ports, limit: Callable[[int], None]
) -> None:
    limit(100)
    promise(Wanted(7, "a" * 64, 60), ports.artifact_store, NOW)
    promise(Wanted(7, "b" * 64, 30), ports.artifact_store, NOW)
    with pytest.raises(ArtifactQuotaFull, match="they have 30, and new ones 71"):
        promise(Wanted(7, "a" * 64, 71), ports.artifact_store, NOW)
    promise(Wanted(7, "a" * 64, 70), ports.artifact_store, NOW)
    assert used_bytes(7) == 100


@pytest.mark.django_db
def test_an_output_that_becomes_an_artifact_during_a_check_is_counted(
    ports: Ports, limit: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(100)
    new_output(7, "attempt", "a" * 64, 60, now=NOW)
    real = uploads.reserved

    def reserved_after_its_end(tenant_id: int, now: datetime) -> Any:
        saved = SavedOutput(new_id(), "a" * 64, 60)
        record(Secured([saved], 7, NOW), Maker("job", "attempt", 1), NOW)
        return real(tenant_id, now)

    monkeypatch.setattr(uploads, "reserved", reserved_after_its_end)
    with pytest.raises(ArtifactQuotaFull, match="they have 60"):
        promise(Wanted(7, "b" * 64, 41), ports.artifact_store, NOW)
