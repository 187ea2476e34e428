"""Bulk statements are equivalent to single ones, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DataError, IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from foundation.database import statements
from foundation.json_text import JsonText
from jobs.domain.states import AttemptState, JobState
from jobs.models import Attempt, Event, Job, SweepRun
from tests.support.factories import make_job

pytestmark = [pytest.mark.django_db, pytest.mark.database]

NOW = datetime(2026, 3, 1, 12, 30, 15, 250_001, tzinfo=UTC)
ODD: list[Any] = [
    None,
    "",
    'a "quoted" \\ text\n\twith ü and 😀',
    {"n": None, "a": [1.5, -0.1, 2**70]},
    [[]],
    0.1 + 0.2,
]
ON_POSTGRESQL = connection.vendor == "postgresql"


def event(job: Job, seq: int, data: Any = None) -> Event:
    return Event(job=job, seq=seq, type="x", at=NOW, data={"n": seq} if data is None else data)


@pytest.mark.parametrize(("count", "asked_for"), [(0, 0), (1, 1), (3, 2), (8, 1), (100, 3)])
def test_several_rows_of_a_kind_are_inserted_in_order(count: int, asked_for: int) -> None:
    job = make_job()
    rows = [event(job, 10 + seq) for seq in range(count)]
    with CaptureQueriesContext(connection) as asked:
        statements.insert_all(rows)
    assert len(asked) == (min(asked_for, 1) if ON_POSTGRESQL else asked_for)
    stored = Event.objects.filter(job=job, type="x").order_by("id").values_list("seq", "data")
    assert list(stored) == [(10 + seq, {"n": 10 + seq}) for seq in range(count)]


def test_an_upserted_row_exists_once_with_its_last_values() -> None:
    for looked in (1, 2):
        rows = [SweepRun(name=name, at=NOW, looked=looked, note=f"it's {looked}") for name in ("a", "b")]
        with CaptureQueriesContext(connection) as asked:
            statements.upsert_all(rows)
        assert len(asked) == 1
    statements.upsert_all([SweepRun(name="c", at=NOW)])
    stored = SweepRun.objects.order_by("name").values_list("name", "at", "looked", "repaired", "note")
    assert list(stored) == [
        ("a", NOW, 2, 0, "it's 2"),
        ("b", NOW, 2, 0, "it's 2"),
        ("c", NOW, 0, 0, ""),
    ]


def test_a_wide_table_stays_below_the_limit_of_parameters() -> None:
    some = make_job()
    jobs = [
        Job(
            tenant=some.tenant, model=some.model, pool=some.pool, payload={"n": n}, place_us=n, created_at=NOW
        )
        for n in range(150)
    ]
    statements.insert_all(jobs)
    assert Job.objects.filter(id__in=[job.id for job in jobs]).count() == 150


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_rows_inserted_together_equal_rows_inserted_alone(odd: Any) -> None:
    job = make_job()

    def row(key: str, slot: int) -> Attempt:
        return Attempt(
            id=key * 26, job_id=job.id, number=slot + 1, state=AttemptState.COMPLETED, server="gpu-1",
            slot=slot, model="m", started_at=NOW, finished_at=NOW + timedelta(days=3),
            gpu_seconds=1 / 3, counted=True,
            error_message=odd if isinstance(odd, str) else "", usage=odd,
        )  # fmt: skip

    statements.insert(row("A", 0))
    statements.insert_all([row("B", 1), row("C", 2)])
    alone, *others = Attempt.objects.order_by("id").values()
    for other in others:
        assert {**other, "id": "", "number": 0, "slot": 0} == {**alone, "id": "", "number": 0, "slot": 0}


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_rows_updated_together_equal_rows_updated_alone(odd: Any) -> None:
    jobs = [make_job(deadline_at=NOW, place_us=1) for _ in range(4)]
    for job in jobs[1:]:
        job.state, job.finished_at, job.result, job.deadline_at = JobState.COMPLETED, NOW, odd, None
        job.error_message, job.event_seq = odd if isinstance(odd, str) else "", 2**30
    fields = ("state", "finished_at", "result", "deadline_at", "error_message", "event_seq")
    statements.update(jobs[1], fields)
    with CaptureQueriesContext(connection) as asked:
        statements.update_all(jobs[2:], fields)
    assert len(asked) == 1
    untouched, alone, *others = Job.objects.order_by("id").values()
    assert (untouched["state"], untouched["deadline_at"]) == (JobState.QUEUED, NOW)
    for other in others:
        assert {**other, "id": ""} == {**alone, "id": ""}


@pytest.mark.parametrize("odd", [odd for odd in ODD if odd is not None], ids=repr)
def test_a_value_that_is_kept_as_its_text_reads_back_as_the_value(odd: Any) -> None:
    jobs = [make_job() for _ in range(3)]
    for job in jobs:
        job.result = JsonText.of(odd)
    statements.update(jobs[0], ("result",))
    statements.update_all(jobs[1:], ("result",))
    assert list(Job.objects.values_list("result", flat=True)) == [odd] * 3


def test_a_row_that_is_gone_stays_gone() -> None:
    there, gone = make_job(), make_job()
    Job.objects.filter(id=gone.id).delete()
    there.priority = gone.priority = 1
    statements.update_all([gone, there], ("priority",))
    assert list(Job.objects.values_list("id", "priority")) == [(there.id, 1)]


def test_if_one_row_is_refused_none_is_inserted() -> None:
    job = make_job()
    with pytest.raises(IntegrityError), transaction.atomic():
        statements.insert_all([event(job, 7), event(job, 8), event(job, 7)])
    assert not Event.objects.filter(job=job, type="x").exists()


@pytest.mark.skipif(not ON_POSTGRESQL, reason="SQLite stores any text")
@pytest.mark.parametrize("text", ["a\0b", "half a pair: \ud83d"], ids=["NUL", "surrogate"])
def test_a_value_that_no_column_can_store_is_refused(text: str) -> None:
    job = make_job()
    with pytest.raises(DataError), transaction.atomic():
        statements.insert_all([event(job, 7, {"text": text}), event(job, 8)])


def test_a_value_of_a_wrong_type_is_refused_before_it_is_sent() -> None:
    job = make_job()
    job.priority = object()
    with pytest.raises(TypeError):
        statements.update_all([job], ("priority",))


@pytest.mark.skipif(not ON_POSTGRESQL, reason="SQLite plans no joins here")
def test_a_few_rows_are_found_by_their_keys() -> None:
    """If the planner must guess the number of rows, it reads the whole table."""
    some = make_job()
    statements.insert_all(
        [
            Job(tenant=some.tenant, model="m", pool="m", payload={"n": "x" * 200}, place_us=n, created_at=NOW)
            for n in range(1000)
        ]
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE jobs_job")
        sql, _ = statements._json_update(Job, ("priority",))
        cursor.execute("EXPLAIN " + sql, ('[{"id":"x","priority":1}]', 8))
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Index Scan" in plan, plan
