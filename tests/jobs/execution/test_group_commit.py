"""The group commit: one transaction for many writes, an outcome for each, no outcome before it is durable."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, connections

from foundation.json_text import PARSE_LOCK
from jobs.execution import group_commit
from jobs.execution.group_commit import GroupCommitWriter, Write, write_batch
from jobs.models import Tenant
from tests.jobs.execution.commit_cutter import cutting_commits
from tests.support.factories import make_tenant
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


def create(name: str) -> str:
    Tenant.objects.bulk_create([Tenant(name=name)])  # one statement, without a savepoint
    return name


def test_a_batch_is_one_transaction(django_assert_num_queries):
    connection.ensure_connection()
    with django_assert_num_queries(4):  # BEGIN, two inserts, COMMIT
        assert write_batch([Write(lambda: create("a")), Write(lambda: create("b"))]) == ["a", "b"]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no pipeline")
def test_a_batchs_last_statements_and_its_commit_are_one_round_trip(monkeypatch):
    connection.ensure_connection()
    real, seen = connection.commit, list[Any]()
    wire = connection.connection.pgconn
    monkeypatch.setattr(connection, "commit", lambda: (seen.append(wire.pipeline_status), real()))
    assert write_batch([Write(lambda: create("a"))]) == ["a"]
    assert seen == [psycopg.pq.PipelineStatus.ON]
    assert wire.pipeline_status == psycopg.pq.PipelineStatus.OFF


def test_a_refused_row_costs_only_its_own_write():
    make_tenant("taken")
    outcomes = write_batch([Write(lambda n=n: create(n)) for n in ("a", "taken", "b")])
    assert outcomes[0] == "a"
    assert isinstance(outcomes[1], Exception)
    assert outcomes[2] == "b"
    assert set(Tenant.objects.values_list("name", flat=True)) == {"taken", "a", "b"}


def test_a_waiting_writer_keeps_no_reference_to_its_last_batch():
    """Ends carry results, which can be megabytes each."""
    ended = threading.Event()
    writer = GroupCommitWriter(lambda outcomes: None)
    writer.start()
    try:
        held = weakref.ref(ended)
        writer.submit(lambda ended=ended: create("a")).result(5)
        del ended
        assert wait_for(lambda: held() is None)
    finally:
        writer.stop()


def test_no_transaction_is_open_while_a_large_answer_is_read():
    writer = GroupCommitWriter(lambda outcomes: None)
    writer.start()
    try:
        with PARSE_LOCK:
            future = writer.submit(lambda: create("late"))
            wait_for(lambda: future.done() or bool(PARSE_LOCK._waiting))
            assert not future.done()
        assert future.result(10) == "late"
    finally:
        writer.stop()


def test_outcomes_follow_the_commit_in_order():
    outcomes_seen: list[Any] = []
    seen: list[int] = []

    def after_commit(outcomes):
        outcomes_seen.extend(outcomes)
        seen.append(Tenant.objects.count())

    writer = GroupCommitWriter(after_commit)
    futures = [writer.submit(lambda n=n: create(f"t{n}")) for n in range(20)]
    writer.start()
    assert [future.result(10) for future in futures] == [f"t{n}" for n in range(20)]
    assert writer.stop()
    assert outcomes_seen == [f"t{n}" for n in range(20)]
    assert seen[-1] == 20


@pytest.mark.parametrize("trouble", ["disk I/O error", "something at the end"])
def test_a_write_whose_commit_fails_is_not_taken_for_written(monkeypatch, trouble):
    """The database goes on answering reads all the while."""
    wrapper = connections["default"]
    real, failures = wrapper.commit, iter(range(3))

    def commit_fails():
        if next(failures, None) is None:
            return real()
        wrapper.rollback()
        raise OperationalError(trouble)

    monkeypatch.setattr(wrapper, "commit", commit_fails)
    writes = [Write(lambda: create("kept"))]
    for _ in range(5):
        try:
            outcome = write_batch(writes)
            break
        except OperationalError:
            assert not Tenant.objects.exists()
    assert outcome == ["kept"]
    assert Tenant.objects.count() == 1


def test_a_database_in_trouble_never_refuses_a_write(monkeypatch):
    """A full disk answers SELECT: the write must wait, however often it was tried."""
    write = Write(lambda: (_ for _ in ()).throw(OperationalError("database or disk is full")))
    for _ in range(3 * group_commit.MAX_REFUSALS):
        with pytest.raises(OperationalError):
            write_batch([write])
    assert write.refusals == 0


@pytest.mark.skipif(
    connections["default"].vendor != "postgresql", reason="SQLite has no connection that could break"
)
def test_a_connection_that_breaks_at_commit_is_never_the_writes_fault():
    """However often: the database answers the next connection, and the write finds itself."""
    outcomes_seen: list[str] = []
    writer = GroupCommitWriter(outcomes_seen.extend, retry_seconds=(0.001,))
    with cutting_commits(4 * group_commit.MAX_REFUSALS) as cutter:
        writes = [writer.submit(lambda name=name: make_tenant(name).name) for name in ("one", "two")]
        writer.start()
        assert [write.result(60) for write in writes] == ["one", "two"]
        writer.stop(10)
    assert cutter.left == 0
    assert outcomes_seen == ["one", "two"]
    assert Tenant.objects.count() == 2


def test_an_error_without_a_code_of_postgresql_is_a_broken_connection():
    broken = OperationalError("server closed the connection unexpectedly")
    broken.__cause__ = psycopg.OperationalError("server closed the connection unexpectedly")
    assert not group_commit.is_caused_by_write(broken)


def test_a_statement_refused_with_others_of_its_round_trip_is_no_broken_connection():
    aborted = OperationalError("pipeline aborted")
    aborted.__cause__ = psycopg.errors.PipelineAborted("pipeline aborted")
    assert group_commit.is_caused_by_write(aborted)


def test_an_outage_keeps_the_batch_and_tries_again(monkeypatch):
    real, failures = group_commit.write_batch, iter([OperationalError("gone"), OperationalError("gone")])
    failed = threading.Event()

    def sometimes(batch):
        error = next(failures, None)
        if error is not None:
            failed.set()
            raise error
        return real(batch)

    monkeypatch.setattr(group_commit, "write_batch", sometimes)
    writer = GroupCommitWriter(lambda outcomes: None, retry_seconds=(0.001,))
    writer.start()
    future = writer.submit(lambda: create("late"))
    assert future.result(10) == "late"
    assert failed.is_set()
    assert not writer.failing
    assert writer.stop()


def test_stop_writes_what_is_queued():
    writer = GroupCommitWriter(lambda outcomes: None)
    futures = [writer.submit(lambda n=n: create(f"s{n}")) for n in range(5)]
    writer.start()
    assert writer.stop()
    assert all(future.done() for future in futures)
    assert Tenant.objects.count() == 5


def test_a_listener_that_fails_does_not_stop_the_writer():
    def broken(outcomes):
        raise RuntimeError("listener")

    writer = GroupCommitWriter(broken)
    writer.start()
    assert writer.submit(lambda: create("a")).result(10) == "a"
    assert writer.submit(lambda: create("b")).result(10) == "b"
    assert writer.stop()


def test_writes_that_arrive_while_a_batch_gathers_join_it_without_a_notification(monkeypatch):
    batches, woken = [], []
    writer = GroupCommitWriter(lambda outcomes: batches.append(len(outcomes)), gather_seconds=600.0)
    notify = writer._changed.notify
    monkeypatch.setattr(writer._changed, "notify", lambda: (woken.append(1), notify()))
    writer.start()
    wait_for(lambda: writer._idle)
    futures = [writer.submit(lambda: create("g0"))]
    wait_for(lambda: not writer._idle)
    futures += [writer.submit(lambda n=n: create(f"g{n}")) for n in range(1, 10)]
    assert (batches, len(woken)) == ([], 1)
    futures.append(writer.submit(lambda: create("g10"), gather=False))
    assert [future.result(30) for future in futures] == [f"g{n}" for n in range(11)]
    assert batches == [11]
    assert writer.stop()


def test_large_results_are_not_stored_in_one_transaction():
    """With SQLite every other writer waits for it."""
    half, batches = group_commit.MAX_BYTES // 2, list[list[str]]()
    writer = GroupCommitWriter(batches.append, gather_seconds=600.0)
    writer.start()
    wait_for(lambda: writer._idle)
    sizes = {"a": half, "b": half, "c": 1, "d": 4 * half, "e": 0}
    futures = [writer.submit(lambda name=name: create(name), size=size) for name, size in sizes.items()]
    writer.submit(lambda: create("f"), gather=False)
    assert [future.result(30) for future in futures] == list(sizes)
    assert writer.stop()
    assert batches == [["a", "b"], ["c"], ["d"], ["e", "f"]]


def test_a_write_that_expects_no_other_is_committed_at_once_with_those_before_it():
    batches = []
    writer = GroupCommitWriter(batches.append, gather_seconds=600.0)
    writer.start()
    assert writer.submit(lambda: create("alone"), gather=False).result(10) == "alone"
    wait_for(lambda: writer._idle)
    first = writer.submit(lambda: create("first"))
    wait_for(lambda: not writer._idle)
    writer.submit(lambda: create("second"), gather=False)
    assert first.result(10) == "first"
    wait_for(lambda: writer._idle)
    writer.submit(lambda: create("third"))
    wait_for(lambda: not writer._idle)
    assert batches == [["alone"], ["first", "second"]], "the haste is over"
    assert writer.stop()


def test_recently_confirmed_writes_are_repeated_first_after_the_database_failed(monkeypatch):
    """Once: the next server may be a standby without them."""
    real, failures, order = group_commit.write_batch, iter(range(3)), []

    def fails_at_first(batch):
        if next(failures, None) is not None:
            raise OperationalError("server closed the connection unexpectedly")
        return real(batch)

    monkeypatch.setattr(group_commit, "write_batch", fails_at_first)
    confirmed = Write(lambda: order.append("confirmed"))
    writer = GroupCommitWriter(lambda outcomes: None, lambda: [confirmed], retry_seconds=(0.001,))
    done = [writer.submit(lambda: order.append("next"))]
    writer.start()
    try:
        done[0].result(10)
        writer.submit(lambda: order.append("later")).result(10)
    finally:
        writer.stop()
    assert order == ["confirmed", "next", "later"]


def test_a_stop_during_an_outage_writes_what_is_queued_once_the_database_is_back(monkeypatch):
    real = group_commit.write_batch
    back = threading.Event()

    def away(batch):
        if not back.is_set():
            raise OperationalError("connection refused")
        return real(batch)

    monkeypatch.setattr(group_commit, "write_batch", away)
    writer = GroupCommitWriter(lambda outcomes: None)
    writer.start()
    writes = [writer.submit(lambda n=n: create(n)) for n in ("a", "b")]
    wait_for(lambda: writer.failing)
    assert not writer.stop(0.0)
    writes.append(writer.submit(lambda: create("c")))  # a run that ends after the stop
    back.set()
    assert writer.stop(30.0)
    assert [write.result(1) for write in writes] == ["a", "b", "c"]


def test_writes_that_follow_from_the_last_batch_are_committed_before_the_writer_ends():
    """An end that can't be stored is written once more, as a failure."""
    writer = GroupCommitWriter(lambda outcomes: None)
    followed = list[Any]()
    first = writer.submit(lambda: create("a"))
    first.add_done_callback(lambda done: followed.append(writer.submit(lambda: create("b"))))
    writer.start()
    assert writer.stop(30.0)
    assert followed[0].result(1) == "b"


def test_a_database_that_goes_away_in_a_refused_batch_repeats_no_write_of_it():
    """Written one by one, because one of them is refused; then it is away for a moment."""
    make_tenant("taken")
    applied = list[str]()
    away = iter((True, False))

    def apply(name: str) -> str:
        applied.append(name)
        if name == "c" and applied.count("c") > 1 and next(away, False):
            raise OperationalError("database is locked")
        return create(name)

    writer = GroupCommitWriter(lambda outcomes: None, retry_seconds=(0.0,))
    writes = [writer.submit(lambda n=n: apply(n)) for n in ("a", "c", "taken")]
    writer.start()
    assert writer.stop(30.0)
    assert [write.result(1) for write in writes[:2]] == ["a", "c"]
    assert writes[2].exception(1) is not None
    assert applied.count("a") == 2, "in the batch, and alone"
