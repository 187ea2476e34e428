"""A migrated SQLite database, kept for later test sessions: the migrations take 4 s of CPU time, too much for
each run of one test."""

from __future__ import annotations

import hashlib
import os
import shutil
import sqlite3
from contextlib import suppress
from functools import cache
from pathlib import Path

import django
from django.db import connections

ALIAS = "default"
_ROOT = Path(__file__).parents[2]
FOLDER = _ROOT / ".pytest_cache" / "migrated"


def begin_migrated() -> bool:
    """Copy the kept database to the place of the test database. Returns False if none is kept, or the tests
    use PostgreSQL."""
    if connections[ALIAS].vendor != "sqlite" or not _kept().exists():
        return False
    shutil.copyfile(_kept(), connections[ALIAS].creation._get_test_db_name())
    return True


def keep_migrated() -> None:
    """Keep the test database if none is kept for these migrations, before a test writes to it."""
    if connections[ALIAS].vendor != "sqlite" or _kept().exists():
        return
    with suppress(OSError):  # a read-only checkout: each session migrates
        FOLDER.mkdir(parents=True, exist_ok=True)
        for older in FOLDER.glob("*.sqlite3"):
            older.unlink(missing_ok=True)
        connections[ALIAS].close()
        copy = FOLDER / f"{os.getpid()}.copy"
        shutil.copyfile(connections[ALIAS].settings_dict["NAME"], copy)
        copy.replace(_kept())


@cache
def _kept() -> Path:
    return FOLDER / f"{digest_of_migrations(_ROOT)}.sqlite3"


def digest_of_migrations(root: Path) -> str:
    """Return what a database is made by, as a hash. root: folder of the packages."""
    found = hashlib.sha256(f"{django.VERSION} {sqlite3.sqlite_version}".encode())
    for file in sorted(root.glob("*/migrations/*.py")):
        found.update(f"\0{file.relative_to(root)}\0".encode() + file.read_bytes())
    return found.hexdigest()[:32]
