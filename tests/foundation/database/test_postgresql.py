"""A read-only PostgreSQL, as after a failover: an outage, and no connection to it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS, OperationalError, connection, connections

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.database,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="of PostgreSQL"),
]
WRITE = "CREATE TABLE planted (n integer)"


@pytest.fixture
def session() -> Iterator[Any]:
    """A connection of its own, whose session is read-only."""
    session = connections.create_connection(DEFAULT_DB_ALIAS)
    with session.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    yield session
    session.close()


def test_a_refused_write_is_an_outage(session: Any) -> None:
    with pytest.raises(OperationalError, match="read-only"), session.cursor() as cursor:
        cursor.execute(WRITE)


def test_a_read_only_session_is_not_kept(session: Any) -> None:
    first = session.connection
    session.close_if_unusable_or_obsolete()
    assert session.connection is first
    with pytest.raises(OperationalError), session.cursor() as cursor:
        cursor.execute(WRITE)
    session.close_if_unusable_or_obsolete()
    assert session.connection is None
    with session.cursor() as cursor:
        cursor.execute("SHOW transaction_read_only")
        assert cursor.fetchone() == ("off",)
    assert session.is_usable()


def test_a_read_only_session_that_only_read_is_not_kept(session: Any) -> None:
    session.connected_at -= 60
    session.close_if_unusable_or_obsolete()
    assert session.connection is None
    with session.cursor() as cursor:
        cursor.execute("SHOW transaction_read_only")
    first = session.connection
    session.connected_at -= 60
    session.close_if_unusable_or_obsolete()
    assert session.connection is first


def test_a_read_only_session_is_kept_for_the_transaction_under_way(session: Any) -> None:
    session.connected_at -= 60
    session.in_atomic_block = True
    session.close_if_unusable_or_obsolete()
    session.in_atomic_block = False
    assert session.connection is not None
    assert not session.closed_in_transaction


def test_a_closed_connection_is_replaced(session: Any) -> None:
    session.connected_at -= 60
    session.connection.close()
    session.errors_occurred = True
    session.close_if_unusable_or_obsolete()
    assert session.connection is None
