"""SQLite's write-ahead log is written back by a sweep, not by the next commit."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from foundation.database.sqlite3.checkpoint import has_log, write_back
from jobs.sweeps.registry import Sweeps
from tests.support.sqlite_writer import path, writer

__all__ = ["path", "writer"]

MIB = 1 << 20


def rows_in_the_file(path: Path, tmp_path: Path) -> int:
    """Rows in the database file, without the log."""
    copy = shutil.copy(path, tmp_path / "copy.sqlite3")
    database = sqlite3.connect(copy)
    try:
        (rows,) = database.execute("SELECT count(*) FROM long").fetchone()
        return int(rows)
    finally:
        database.close()


def test_a_commit_leaves_a_long_log_to_the_sweep(writer: Any, path: Path, tmp_path: Path) -> None:
    writer.cursor().execute("CREATE TABLE long (text)")
    assert has_log(writer)
    write_back(writer)
    for _ in range(8):
        writer.cursor().execute("INSERT INTO long VALUES (zeroblob(%s))", [MIB])
    assert rows_in_the_file(path, tmp_path) == 0
    assert write_back(writer) > 8 * MIB // 4096
    assert rows_in_the_file(path, tmp_path) == 8


@pytest.mark.database
def test_the_sweep_is_only_for_sqlite_files() -> None:
    entry = Sweeps().entries()["checkpoint"]
    assert entry.is_needed is not None
    assert entry.is_needed(None) is (connection.vendor == "sqlite" and not connection.is_in_memory_db())  # type: ignore[arg-type,attr-defined]
