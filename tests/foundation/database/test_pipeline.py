"""Pipelined statements: their errors are Django's, and then none is stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import psycopg
import pytest
from django.db import IntegrityError, OperationalError, connection, transaction

from foundation.database import statements
from foundation.database.connections import one_round_trip, pipelined_transaction
from jobs.models import Event, Job
from tests.support.factories import make_job
from tests.support.round_trips import round_trips

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
only_postgresql = pytest.mark.skipif(
    connection.vendor != "postgresql",
    reason="SQLite runs statements one by one, and has no connection to lose",
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def job() -> Job:
    job = make_job()
    Event.objects.all().delete()
    return job


def insert(job: Job, *numbers: int, then: Callable[[], object] = lambda: None) -> None:
    """One statement for each."""
    with one_round_trip(), transaction.atomic():
        for number in numbers:
            statements.insert_all([Event(job=job, seq=number, type="x", at=NOW, data={})])
        then()


def stored() -> list[int]:
    return sorted(Event.objects.values_list("seq", flat=True))


def test_pipelined_statements_are_stored_and_readable_in_between(job: Job) -> None:
    seen: list[int] = []
    insert(job, 1, 2, then=lambda: seen.extend(stored()))
    assert seen == stored() == [1, 2]


@pytest.mark.parametrize("taken", [1, 3], ids=["the first is refused", "the last is refused"])
def test_a_refused_statement_raises_and_none_is_stored(job: Job, taken: int) -> None:
    insert(job, taken)
    with pytest.raises(IntegrityError):
        insert(job, 1, 2, 3)
    assert stored() == [taken]
    insert(job, 4)
    assert stored() == [taken, 4], "the connection goes on"


def test_an_error_of_ours_rolls_back(job: Job) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        insert(job, 1, then=fail)
    assert stored() == []


@only_postgresql
def test_a_pipeline_waits_only_at_its_end(job: Job) -> None:
    seen: list[object] = []
    insert(job, 1, 2, then=lambda: seen.append(connection.connection.pgconn.pipeline_status))
    assert seen == [psycopg.pq.PipelineStatus.ON]
    assert connection.connection.pgconn.pipeline_status == psycopg.pq.PipelineStatus.OFF


def insert_pipelined(job: Job, *numbers: int, then: Callable[[], object] = lambda: None) -> None:
    with pipelined_transaction():
        for number in numbers:
            statements.insert_all([Event(job=job, seq=number, type="x", at=NOW, data={})])
        then()


@only_postgresql
def test_a_pipelined_transaction_takes_two_round_trips(job: Job) -> None:
    insert(job, 1)
    assert round_trips(lambda: insert_pipelined(job, 2, 3)) == 2, "BEGIN, and all others"
    assert stored() == [1, 2, 3]
    assert connection.get_autocommit()


def test_a_pipelined_transaction_stores_all_or_none(job: Job) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    insert_pipelined(job, 1)
    with pytest.raises(IntegrityError):
        insert_pipelined(job, 2, 1)
    with pytest.raises(ZeroDivisionError):
        insert_pipelined(job, 3, then=fail)
    assert stored() == [1]
    insert_pipelined(job, 4)
    assert stored() == [1, 4], "the connection goes on"


def test_a_pipelined_transaction_in_another_one_does_not_commit_it(job: Job) -> None:
    with transaction.atomic():
        insert_pipelined(job, 1)
        transaction.set_rollback(True)
    assert stored() == []


def test_a_pipelined_transaction_that_is_to_be_rolled_back_does_not_commit(job: Job) -> None:
    insert_pipelined(job, 1, then=lambda: transaction.set_rollback(True))
    assert stored() == []


def test_work_that_waits_for_the_commit_runs_after_it(job: Job) -> None:
    seen: list[int] = []
    insert_pipelined(job, 1, then=lambda: transaction.on_commit(lambda: seen.extend(stored())))
    assert seen == [1]


def test_a_compare_and_set_in_a_pipeline_has_its_answer(job: Job) -> None:
    def is_first(priority: int) -> bool:
        with pipelined_transaction():
            return statements.compare_and_set(Job, {"priority": 9}, id=job.id, priority=priority)

    assert is_first(job.priority)
    assert not is_first(job.priority)


@only_postgresql
def test_a_lost_connection_is_no_integrity_error(job: Job) -> None:
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": None}) as other:
        pid = connection.connection.info.backend_pid
        with pytest.raises(OperationalError):
            insert(job, 1, then=lambda: other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid]))
    connection.close()
    assert stored() == []
    insert(job, 2)
    assert stored() == [2]
