"""A few connections for many threads: each used by one thread for a block, then kept for the next."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import OperationalError, connection, connections

from foundation.database import statements
from foundation.database.connections import ConnectionPool
from gpus.models import Pool

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]


@pytest.fixture
def pool(request):
    pool = ConnectionPool(2, **getattr(request, "param", {}))
    yield pool
    pool.close()


named = statements.Read(lambda: Pool.objects.order_by("name").values_list("name", flat=True))
its_own = statements.this_database


def test_a_block_reads_over_a_pooled_connection(pool) -> None:
    Pool.objects.create(name="here")
    own = its_own()
    with pool.connection():
        lent = its_own()
        assert lent is not own
        assert named() == ["here"]
    assert its_own() is own
    with pool.connection():
        assert its_own() is lent, "it is kept for the next"
        assert lent.connection is not None


def test_the_threads_own_connection_is_restored_after_an_error(pool) -> None:
    own = its_own()
    with pytest.raises(ZeroDivisionError), pool.connection():
        _ = 1 / 0
    assert its_own() is own
    with pool.connection():
        pass


def test_many_threads_share_the_pools_connections(pool) -> None:
    seen: set[int] = set()

    def read(_: int) -> list[str]:
        with pool.connection():
            seen.add(id(its_own()))
            found = named()
        assert connection.connection is None, "the thread's own was not needed"
        return found

    Pool.objects.create(name="here")
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(read, range(40))) == [["here"]] * 40
    assert len(seen) <= 2


@pytest.mark.parametrize("pool", [{"wait_seconds": 0.01}], indirect=True)
def test_a_thread_that_finds_no_free_connection_is_refused_after_a_while(pool) -> None:
    held, done = threading.Barrier(3), threading.Event()

    def hold() -> None:
        with pool.connection():
            named()
            held.wait(30)
            done.wait(30)

    threads = [threading.Thread(target=hold) for _ in range(2)]
    for thread in threads:
        thread.start()
    held.wait(30)
    with pool.connection():
        pass  # a block without a read needs none
    with pytest.raises(OperationalError), pool.connection():
        named()
    done.set()
    for thread in threads:
        thread.join(30)
    with pool.connection():
        assert named() == []


def test_a_broken_connection_is_not_used_again(pool) -> None:
    with pool.connection():
        named()
        lent = its_own()
        lent.connection.close()  # as if the server had gone
        with pytest.raises(Exception, match=r"(?i)closed"):
            named()
    with pool.connection():
        assert its_own() is lent
        assert named() == []


@pytest.mark.parametrize("pool", [{"check_after_seconds": -1.0}], indirect=True)
def test_an_idle_connection_is_checked_before_use(pool, monkeypatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_HEALTH_CHECKS", True)
    with pool.connection():
        named()
        lent = its_own()
        broken = lent.connection
        broken.close()
    monkeypatch.setattr(lent, "is_usable", lambda: False)  # SQLite has no server to lose
    with pool.connection():
        assert named() == []
        assert its_own().connection is not broken
