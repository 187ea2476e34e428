"""PostgreSQL databases that a benchmark creates and drops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg

LOCAL = "postgresql://postgres@127.0.0.1:5432/postgres"


@contextmanager
def own_database(server: str, name: str, *, keep: bool = False) -> Iterator[str]:
    """Yield the URL of database `name` on this server. keep: leave it for the next call, which reuses it."""
    with psycopg.connect(server, autocommit=True) as admin:
        known = admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
        if not known:
            admin.execute(f'CREATE DATABASE "{name}"')
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        if not keep:
            with psycopg.connect(server, autocommit=True) as admin:
                admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
