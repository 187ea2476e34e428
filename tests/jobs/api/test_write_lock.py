"""Writers of one process take turns on a database with one writer; elsewhere their transactions are short."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection

from foundation.database import connections, statements
from jobs.domain.errors import QuotaExhausted
from jobs.models import Job
from jobs.submission import insert
from jobs.submission.request import KeyedRequest, read_request
from jobs.submission.submit import submit_batch
from tests.support.api_harness import Account, ApiHarness
from tests.support.round_trips import round_trips
from tests.support.waiting import wait_for


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    result = SimpleNamespace(vendor="sqlite", in_atomic_block=False, settings_dict={})
    result.settings_dict = {"NAME": "db.sqlite3", "OPTIONS": {"timeout": 20}}
    monkeypatch.setattr(connections, "connections", {"default": result})
    yield result
    assert not connections._lock.taken, "every turn is released"


def in_a_thread(
    rows: int = 1, then: Callable[[], None] = lambda: None
) -> tuple[threading.Thread, threading.Event]:
    """Start a writer; return it with the event that it has the lock."""
    has_it = threading.Event()

    def write() -> None:
        with connections.write_lock(rows):
            has_it.set()
            then()

    thread = threading.Thread(target=write)
    thread.start()
    return thread, has_it


def test_the_next_writer_starts_when_the_previous_one_ends(database: SimpleNamespace) -> None:
    with connections.write_lock(1):
        thread, has_it = in_a_thread()
        assert not has_it.wait(0.1)
    assert has_it.wait(10)
    thread.join()


def test_short_transactions_go_before_long_ones(database: SimpleNamespace) -> None:
    order: list[str] = []
    with connections.write_lock(1):
        long, _ = in_a_thread(1_000, lambda: order.append("long"))
        wait_for(lambda: len(connections._lock._changed._waiters) == 1)  # type: ignore[attr-defined]
        short, _ = in_a_thread(1, lambda: order.append("short"))
        wait_for(lambda: len(connections._lock._changed._waiters) == 2)  # type: ignore[attr-defined]
    long.join()
    short.join()
    assert order == ["short", "long"]


def test_a_writer_inside_a_transaction_does_not_wait(database: SimpleNamespace) -> None:
    database.in_atomic_block = (
        True  # the inner one already has SQLite's lock, for which the next writer waits
    )
    with connections.write_lock(1):
        assert not connections._lock.taken


def test_fibers_of_the_simulator_do_not_wait(database: SimpleNamespace) -> None:
    database.settings_dict = {"NAME": ":memory:"}
    with connections.write_lock(1):
        assert not connections._lock.taken


def test_a_writer_that_fails_releases_the_lock(database: SimpleNamespace) -> None:
    with pytest.raises(KeyError), connections.write_lock(1):
        raise KeyError


def test_a_lock_that_stays_taken_stops_no_writer(database: SimpleNamespace) -> None:
    """The database's own `timeout` bounds both waits, so that a locked database is reported in time."""
    database.settings_dict["OPTIONS"]["timeout"] = 0.01
    with connections.write_lock(1):
        thread, has_it = in_a_thread()
        assert has_it.wait(10)
        thread.join()
        assert connections._lock.taken, "a writer without the lock does not release it"


def test_postgresql_has_room_for_many_writers(database: SimpleNamespace) -> None:
    database.vendor = "postgresql"
    with ExitStack() as writers:
        for _ in range(3):
            writers.enter_context(connections.write_lock(1))


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("zimg")
@pytest.mark.parametrize("key", [None, "of-the-batch"])
def test_jobs_are_stored_under_the_lock(
    acme: Account, api: ApiHarness, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    write, held = statements.write, []

    def look(rows: Any) -> None:
        held.append(connections._lock.taken)
        write(rows)

    monkeypatch.setattr(statements, "write", look)
    request = read_request({"model": "zimg", "payload": {}})
    submit_batch(
        [request],
        tenant=acme.tenant,
        ports=api.ports,
        idempotency_key=KeyedRequest(key, "f") if key else None,
    )
    assert all(held)
    assert held
    assert not connections._lock.taken


@pytest.mark.django_db(transaction=True)
@pytest.mark.database
@pytest.mark.usefixtures("zimg")
def test_a_submit_takes_two_round_trips_to_postgresql(acme: Account, api: ApiHarness) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has none")
    requests = [read_request({"model": "zimg", "payload": {}})]

    def submit() -> None:
        submit_batch(requests, tenant=acme.tenant, ports=api.ports)

    submit()
    assert round_trips(submit) == 2, "BEGIN, and all others"
    assert Job.objects.count() == 2


@pytest.mark.django_db
@pytest.mark.usefixtures("zimg")
def test_a_batch_beyond_the_quota_makes_no_rows(
    acme: Account, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    used_up = QuotaExhausted("The quota of today is used up.")
    monkeypatch.setattr(insert, "quota_refusal", lambda *_: used_up)
    monkeypatch.setattr(insert, "new_jobs", None)  # not callable
    requests = [read_request({"model": "zimg", "payload": {}})] * 3
    assert submit_batch(requests, tenant=acme.tenant, ports=api.ports).items == (used_up,) * 3
