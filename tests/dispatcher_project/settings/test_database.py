"""What a DATABASE_URL becomes."""

from __future__ import annotations

import socket
import time

import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured

from dispatcher_project.settings.base import database


def test_sqlites_lock_timeout_can_be_set_in_the_url() -> None:
    options = database("sqlite:////data/db.sqlite3")["OPTIONS"]
    assert (options["timeout"], options["transaction_mode"]) == (20, "IMMEDIATE")
    assert options["cached_statements"] > 500  # there are hundreds, and the driver's own number is 128
    assert "journal_mode=WAL" in options["init_command"]
    own = database("sqlite:////data/db.sqlite3?timeout=3")["OPTIONS"]
    assert own == options | {"timeout": 3}


def test_postgresqls_timeouts_can_be_set_in_the_url() -> None:
    options = database("postgresql://user@host/name?connect_timeout=2&sslmode=require")["OPTIONS"]
    assert (options["connect_timeout"], options["sslmode"]) == (2, "require")
    assert {"keepalives_idle", "tcp_user_timeout"} <= options.keys()


@pytest.mark.parametrize(
    ("query", "after"), [("", 5), ("?prepare_threshold=2", 2), ("?prepare_threshold=none", None)]
)
def test_statements_are_prepared_unless_the_url_disables_it(query: str, after: int | None) -> None:
    assert database(f"postgresql://user@host/name{query}")["OPTIONS"]["prepare_threshold"] == after


def test_an_invalid_prepare_threshold_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="prepare_threshold"):
        database("postgresql://user@host/name?prepare_threshold=soon")


def test_a_silent_postgresql_ends_in_an_error() -> None:
    """And the driver takes our options."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        entry = database(f"postgresql://user@127.0.0.1:{silent.getsockname()[1]}/name?connect_timeout=2")
        began = time.monotonic()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(host=entry["HOST"], port=entry["PORT"], **entry["OPTIONS"])
        assert time.monotonic() - began < 15
