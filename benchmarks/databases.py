"""Databases that a benchmark creates and drops."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from urllib.parse import urlsplit, urlunsplit

import psycopg

SQLITE = "sqlite"
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


@contextmanager
def environment_with(server: str, folder: str) -> Iterator[None]:
    """Set the environment of a dispatcher with an empty database. server: URL of a PostgreSQL server, or
    `SQLITE` for a file in the folder."""
    file = nullcontext(f"sqlite:///{folder}/db.sqlite3")
    with file if server == SQLITE else own_database(server, f"bench_{os.getpid()}") as url:
        os.environ.update(
            DATABASE_URL=url,
            DJANGO_SETTINGS_MODULE="dispatcher_project.settings.base",
            DJANGO_SECRET_KEY="of-the-benchmark",
            DISPATCHER_LOG_LEVEL="CRITICAL",
            DISPATCHER_NO_BOOTSTRAP="1",
        )
        yield
