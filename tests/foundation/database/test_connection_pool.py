"""A few connections for many threads: each one's own for a block, kept for the next."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import OperationalError, connection, connections

from foundation.database import connection_pool, statements
from foundation.database.connection_pool import ConnectionPool
from gpus.models import Pool

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture
def lender():
    lender = ConnectionPool(2)
    yield lender
    lender.close()


named = statements.Read(lambda: Pool.objects.order_by("name").values_list("name", flat=True))
its_own = statements.this_database


def test_a_block_reads_over_a_connection_that_is_lent(lender) -> None:
    Pool.objects.create(name="here")
    own = its_own()
    with lender.connection():
        lent = its_own()
        assert lent is not own
        assert named() == ["here"]
    assert its_own() is own
    with lender.connection():
        assert its_own() is lent, "it is kept for the next"
        assert lent.connection is not None


def test_the_threads_own_comes_back_whatever_happens(lender) -> None:
    own = its_own()
    with pytest.raises(ZeroDivisionError), lender.connection():
        _ = 1 / 0
    assert its_own() is own
    with lender.connection():
        pass


def test_many_threads_share_as_many_as_there_may_be(lender) -> None:
    seen: set[int] = set()

    def read(_: int) -> list[str]:
        with lender.connection():
            seen.add(id(its_own()))
            found = named()
        assert connection.connection is None, "the thread's own was not needed"
        return found

    Pool.objects.create(name="here")
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(read, range(40))) == [["here"]] * 40
    assert len(seen) <= 2


def test_who_finds_none_free_is_refused_after_a_while(lender, monkeypatch) -> None:
    monkeypatch.setattr(connection_pool, "WAIT_SECONDS", 0.01)
    held, done = threading.Barrier(3), threading.Event()

    def hold() -> None:
        with lender.connection():
            named()
            held.wait(30)
            done.wait(30)

    threads = [threading.Thread(target=hold) for _ in range(2)]
    for thread in threads:
        thread.start()
    held.wait(30)
    with lender.connection():
        pass  # who reads nothing needs none
    with pytest.raises(OperationalError), lender.connection():
        named()
    done.set()
    for thread in threads:
        thread.join(30)
    with lender.connection():
        assert named() == []


def test_one_that_broke_is_not_lent_again(lender) -> None:
    with lender.connection():
        named()
        lent = its_own()
        lent.connection.close()  # as if the server had gone
        with pytest.raises(Exception, match=r"(?i)closed"):
            named()
    with lender.connection():
        assert its_own() is lent
        assert named() == []


def test_one_that_lay_idle_is_looked_at(lender, monkeypatch) -> None:
    monkeypatch.setattr(connection_pool, "CHECK_AFTER_SECONDS", -1.0)
    monkeypatch.setitem(connections.settings["default"], "CONN_HEALTH_CHECKS", True)
    with lender.connection():
        named()
        lent = its_own()
        broken = lent.connection
        broken.close()
    monkeypatch.setattr(lent, "is_usable", lambda: False)  # SQLite has no server to lose
    with lender.connection():
        assert named() == []
        assert its_own().connection is not broken
