"""A second writer of an SQLite file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db.utils import ConnectionHandler
from pytest_django import DjangoDbBlocker

from dispatcher_project.settings.base import database

TIMEOUT = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db.sqlite3"


@pytest.fixture
def writer(path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[Any]:
    handler = ConnectionHandler({"default": database(f"sqlite:///{path}?timeout={TIMEOUT}")})
    writer: Any = handler["default"]
    writer.inc_thread_sharing()
    with django_db_blocker.unblock():
        writer.ensure_connection()
        yield writer
        writer.close()
