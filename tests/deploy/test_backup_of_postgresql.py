"""`backup` and `restore` of a real PostgreSQL database, by its own client programs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection

from artifacts.models import StoreFolder
from dispatcher_project.supervisor.backup import BackupError, backup
from dispatcher_project.supervisor.data_folder import DataFolder
from dispatcher_project.supervisor.restore import restore
from jobs.domain.states import JobState
from tests.support.factories import make_job

pytestmark = pytest.mark.database

KEY = {"DJANGO_SECRET_KEY": "k" * 50}


@pytest.fixture
def empty_database(transactional_db: None) -> Iterator[str]:
    """A database beside the one of the tests."""
    if connection.vendor != "postgresql" or shutil.which("pg_dump") is None:
        pytest.skip("no PostgreSQL, or no client programs")
    name = f"{connection.settings_dict['NAME']}_restored"
    with psycopg.connect(_url("postgres"), autocommit=True) as server:
        server.execute(f'DROP DATABASE IF EXISTS "{name}"')
        server.execute(f'CREATE DATABASE "{name}"')
        yield _url(name)
        server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _url(database: str) -> str:
    one: dict[str, Any] = connection.settings_dict
    host = f"{one['HOST'] or '127.0.0.1'}:{one['PORT'] or 5432}"
    return f"postgresql://{one['USER']}:{one['PASSWORD'] or 'x'}@{host}/{database}"


def test_postgresql_is_restored_into_another_database(empty_database: str, tmp_path: Path) -> None:
    job = make_job(state=JobState.QUEUED)
    StoreFolder.objects.create(folder="01M8MVN3E4780P0MH36TWZ3884")
    ours = {**KEY, "DATABASE_URL": f"{_url(connection.settings_dict['NAME'])}?prepare_threshold=none"}
    backup(tmp_path / "b.tar", DataFolder(tmp_path / "none"), ours)
    theirs = {**KEY, "DATABASE_URL": empty_database}
    restore(tmp_path / "b.tar", DataFolder(tmp_path / "new"), theirs, overwrite=False)
    with psycopg.connect(empty_database) as restored:
        assert restored.execute("SELECT id, state FROM jobs_job").fetchall() == [(job.id, "queued")]
        found = restored.execute("SELECT folder FROM artifacts_storefolder").fetchall()
        assert found == [("01M8MVN3E4780P0MH36TWZ3884",)], "a copy of its folder is its store"
        with pytest.raises(BackupError, match=r"1 sessions use .*: stop the web"):
            restore(tmp_path / "b.tar", DataFolder(tmp_path / "new"), theirs, overwrite=True)
    with pytest.raises(BackupError, match="has rows in jobs_tenant"):
        restore(tmp_path / "b.tar", DataFolder(tmp_path / "new"), theirs, overwrite=False)
    restore(tmp_path / "b.tar", DataFolder(tmp_path / "new"), theirs, overwrite=True)
