"""A precompiled statement is equivalent to its queryset, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import (
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    OperationalError,
    connection,
    transaction,
)
from django.db.models import Count, Q, QuerySet, Sum
from django.test.utils import CaptureQueriesContext

from foundation import ids
from foundation.database import statements
from foundation.database.statements import value
from jobs.domain.states import AttemptState, JobState
from jobs.models import Attempt, EndNotice, Event, Job
from tests.support.factories import make_job

pytestmark = [pytest.mark.django_db, pytest.mark.database]

NOW = datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=UTC)


def attempt_of(job: Job, attempt_id: str = "A" * 26, *, slot: int = 0, number: int = 1) -> Attempt:
    return Attempt(
        id=attempt_id, job_id=job.id, number=number, state=AttemptState.SENT, server="gpu-1", slot=slot,
        model=job.model, started_at=NOW,
    )  # fmt: skip


def test_a_row_reads_as_the_queryset_reads_it() -> None:
    job = make_job(payload={"a": [1, None]}, tags=["x"], metadata={"y": 2.5}, deadline_at=NOW)
    read = statements.Read(lambda: Job.objects.defer("payload", "result").filter(id=value(Job, "id")))

    for _ in range(2):  # compiled, then only executed
        found = read.first(id=job.id)
        assert found.get_deferred_fields() == {"payload", "result"}
        plain = Job.objects.get(id=job.id)
        for field in Job._meta.concrete_fields:
            if field.attname not in ("payload", "result"):
                assert getattr(found, field.attname) == getattr(plain, field.attname), field.name
        assert found.payload == {"a": [1, None]}
        assert not found._state.adding
    assert read.first(id="nobody") is None


@pytest.mark.parametrize(
    "columns",
    [
        lambda rows: rows.values("state", "payload", "deadline_at"),
        lambda rows: rows.values_list("state", "payload", "deadline_at"),
        lambda rows: rows.values_list("deadline_at", flat=True),
    ],
    ids=["dicts", "tuples", "flat"],
)
def test_columns_come_as_the_queryset_gives_them(columns) -> None:
    job = make_job(payload={"a": "ü"}, deadline_at=NOW)

    def rows(job_id: object) -> QuerySet:
        return columns(Job.objects.filter(id=job_id))

    assert statements.Read(lambda: rows(value(Job, "id")))(id=job.id) == list(rows(job.id))


def test_sums_over_all_rows_are_one_row_even_of_none() -> None:
    sums = {"rows": Count("pk"), "urgent": Count("pk", filter=Q(priority=1)), "places": Sum("place_us")}
    read = statements.Read(lambda: statements.summed(Job.objects.filter(model=value(Job, "model")), **sums))
    assert read(model="none") == [{"rows": 0, "urgent": 0, "places": None}]
    jobs = [make_job(priority=priority) for priority in (1, 5, 5)]
    [found] = read(model=jobs[0].model)
    assert found == Job.objects.filter(model=jobs[0].model).aggregate(**sums)
    assert (found["rows"], found["urgent"]) == (3, 1)


def test_constants_are_inlined_in_sqlites_text() -> None:
    """A bound value for the condition of a partial index would make SQLite recompile the statement each
    time."""
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL plans with the values")
    odd = make_job(model="it's 100% %s ?", error_message="a % b")
    make_job()
    read = statements.Read(
        lambda: (
            Job.objects.filter(
                model=odd.model, state=JobState.QUEUED.value, place_us__gt=1, error_message__contains="% b"
            )
            .filter(id__in=[value(Job, "id", "one"), value(Job, "id", "other")])
            .values_list("id", "finished_at")
        )
    )
    places: list[object] = []

    def look(execute, sql, params, many, context):  # type: ignore[no-untyped-def]
        places.append(tuple(params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(look):
        assert read(one=odd.id, other="nobody") == [(odd.id, None)]
    with CaptureQueriesContext(connection) as asked:
        assert read(one=odd.id, other="nobody") == [(odd.id, None)]
    assert places == [(odd.id, "nobody")]
    assert odd.id in asked.captured_queries[0]["sql"]


def test_an_unsupported_queryset_is_refused_at_once() -> None:
    with pytest.raises(TypeError):
        statements.Read(lambda: Job.objects.values_list("id", named=True))()


def test_a_lock_is_kept() -> None:
    job = make_job()
    read = statements.Read(lambda: Job.objects.select_for_update().filter(id=value(Job, "id")))
    with transaction.atomic(), CaptureQueriesContext(connection) as asked:
        read.first(id=job.id)
    assert ("FOR UPDATE" in asked.captured_queries[0]["sql"]) is connection.features.has_select_for_update


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8])
def test_some_of_many_are_found_once_each(count: int) -> None:
    jobs = [make_job().id for _ in range(9)]
    among = statements.ReadAmong(
        (Job, "id"),
        rows=lambda ids: Job.objects.filter(id__in=ids, state=value(Job, "state")).values_list(
            "id", flat=True
        ),
    )

    assert sorted(among(jobs[:count], state=JobState.QUEUED)) == jobs[:count]
    assert among([*jobs[:count], "nobody"], state=JobState.RUNNING) == []


def test_an_inserted_row_reads_back_whole() -> None:
    job = make_job()
    assert statements.insert(Event(job_id=job.id, seq=7, type="x", at=NOW, data={"a": ["ü", None]}))

    event = Event.objects.get(job=job, seq=7)
    assert (event.type, event.at, event.data) == ("x", NOW, {"a": ["ü", None]})
    with pytest.raises(IntegrityError), transaction.atomic():
        statements.insert(Event(job_id=job.id, seq=7, type="x", at=NOW))


def test_a_conflict_is_reported_and_changes_no_row() -> None:
    first, second = make_job(), make_job()
    assert statements.insert(attempt_of(first), ignore_conflicts=True)
    assert not statements.insert(attempt_of(second, "B" * 26), ignore_conflicts=True)  # the slot's index
    assert list(Attempt.objects.values_list("id", flat=True)) == ["A" * 26]


def test_postgresql_prepares_repeated_statements_and_plans_each_time() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite's driver keeps its statements by itself")
    job = make_job()
    read = statements.Read(lambda: Job.objects.filter(id=value(Job, "id")).values_list("id", flat=True))
    for _ in range(connection.connection.prepare_threshold + 2):
        assert read(id=job.id) == [job.id]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT custom_plans, generic_plans FROM pg_prepared_statements WHERE statement LIKE %s",
            ['%WHERE "jobs_job"."id" = ($1)%'],
        )
        kept = cursor.fetchall()
    assert kept
    assert all(custom and not generic for custom, generic in kept)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL keeps statements")
def test_a_column_whose_type_changes_costs_one_call() -> None:
    read = statements.Read(lambda: Job.objects.values_list("pool", flat=True))
    connection.ensure_connection()
    for _ in range(connection.connection.prepare_threshold + 2):
        read()
    migration = connection.copy()  # psycopg drops prepared statements after its own DDL
    try:
        with migration.cursor() as cursor:
            cursor.execute("ALTER TABLE jobs_job ALTER COLUMN pool TYPE varchar(65)")
        with pytest.raises(NotSupportedError, match="cached plan"):
            read()
        assert read() == []
    finally:
        with migration.cursor() as cursor:
            cursor.execute("ALTER TABLE jobs_job ALTER COLUMN pool TYPE varchar(64)")
        migration.close()


def test_an_unreachable_database_raises_djangos_own_error() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite is not away")
    job = make_job()
    read = statements.Read(lambda: Job.objects.filter(id=value(Job, "id")).values_list("id", flat=True))
    connection.connection.close()
    with pytest.raises((OperationalError, InterfaceError)):
        read(id=job.id)


def test_an_update_writes_only_its_fields() -> None:
    job = make_job(error_message="old")
    job.error_message, job.priority, job.due_at = "new", 2, NOW
    assert statements.update(job, ("priority", "due_at"))

    stored = Job.objects.get(id=job.id)
    assert (stored.priority, stored.due_at, stored.error_message) == (2, NOW, "old")
    job.delete()
    job.id = "nobody"
    assert not statements.update(job, ("priority", "due_at"))


def test_a_change_is_a_compare_and_set() -> None:
    attempt = attempt_of(make_job())
    statements.insert(attempt)
    waiting = {"state": AttemptState.WAITING, "remote_id": "r"}

    assert not statements.change(Attempt, waiting, pk=attempt.id, epoch=2, state=AttemptState.SENT)
    assert statements.change(Attempt, waiting, pk=attempt.id, epoch=1, state=AttemptState.SENT)
    assert not statements.change(Attempt, waiting, pk=attempt.id, epoch=1, state=AttemptState.SENT)


def test_members_are_set_in_an_object_that_keeps_its_others() -> None:
    job, other = make_job(metadata={"a": "old", "b": {"c": [1]}}), make_job(metadata={"a": "old"})
    more = {"priority": 2, "metadata": statements.Members({"a": "ü", "d": 4})}

    assert statements.compare_and_set(Job, more, id=job.id, priority=job.priority)
    assert not statements.compare_and_set(Job, more, id=job.id, priority=job.priority)
    assert statements.change(Job, {"metadata": statements.Members({})}, id=job.id)
    job.refresh_from_db()
    other.refresh_from_db()
    assert (job.metadata, job.priority) == ({"a": "ü", "b": {"c": [1]}, "d": 4}, 2)
    assert other.metadata == {"a": "old"}
    assert statements.change(Job, {"metadata": {"e": 5}}, id=job.id)
    job.refresh_from_db()
    assert job.metadata == {"e": 5}


@pytest.mark.parametrize("count", [0, 1, 3, statements.MAX_KEYS + 1])
def test_rows_are_deleted_by_their_keys_and_no_others(count: int) -> None:
    at = datetime.now(UTC)
    notices = EndNotice.objects.bulk_create(
        EndNotice(followed_by="run:x", ended_id=str(number), state="completed", at=at)
        for number in range(count + 2)
    )
    statements.delete_all(EndNotice, [notice.pk for notice in notices[1 : count + 1]])
    assert list(EndNotice.objects.values_list("ended_id", flat=True)) == ["0", str(count + 1)]


def test_preparing_an_insert_draws_no_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a simulated history would differ in the process that prepares it first."""
    drawn: list[int] = []
    monkeypatch.setattr(ids, "chance_bits", lambda bits: drawn.append(bits) or 0)
    statements.insert_sql.cache_clear()
    statements.insert_sql(connection.vendor, Job, False)
    assert drawn == []


def test_related_rows_are_read_with_select_related() -> None:
    job = make_job(payload={"a": 1})
    statements.insert(attempt_of(job))
    read = statements.Read(
        lambda: (
            Attempt.objects.select_related("job__tenant")
            .defer("job__payload")
            .filter(id=value(Attempt, "id"))
        )
    )
    with CaptureQueriesContext(connection) as asked:
        found = read.first(id="A" * 26)
        assert (found.server, found.job.id, found.job.tenant.pk) == ("gpu-1", job.id, job.tenant_id)
        assert found.job.get_deferred_fields() == {"payload"}
    assert len(asked) == 1


def test_the_outer_connection_is_used_again_after_an_inner_block() -> None:
    own, outer, inner = statements.this_database(), object(), object()
    with statements.use_connection(lambda: outer):
        with statements.use_connection(lambda: inner):
            assert statements.this_database() is inner
        assert statements.this_database() is outer
    assert statements.this_database() is own
