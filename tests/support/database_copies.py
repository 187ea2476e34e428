"""A migrated database of which each forked worker gets a copy: migrations take a second of CPU time.

Systems that tests start begin with a copy, too: there it is two, with the reading of all migrations.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from django.db import connections
from django.test.utils import setup_databases, teardown_databases
from pytest_django.fixtures import _get_databases_for_setup

from tests.support.emptying import end_other_sessions, let_be_emptied
from tests.support.migrated_cache import begin_migrated, keep_migrated

ALIAS = "default"
_SUFFIX = "forked"
MIGRATED = "MIGRATED"
"""Beside the test settings: the original's name, in its workers too."""


@contextmanager
def original(items: list[pytest.Item]) -> Iterator[None]:
    """In the parent: the migrated database, if any test needs one. Nothing stays connected to it: PostgreSQL
    copies no database that is in use."""
    aliases, _ = _get_databases_for_setup(items)
    if ALIAS not in aliases:
        yield
        return
    connection = connections[ALIAS]
    if connection.vendor == "postgresql":  # beside that of a run without forks
        name = connection.creation._get_test_db_name()
        connection.settings_dict["TEST"]["NAME"] = f"{name}_{_SUFFIX}"
    before = setup_databases(verbosity=0, interactive=False, aliases=[ALIAS], keepdb=begin_migrated())
    keep_migrated()
    connection.close()
    connection.settings_dict["TEST"][MIGRATED] = connection.settings_dict["NAME"]
    try:
        yield
    finally:
        del connection.settings_dict["TEST"][MIGRATED]
        teardown_databases(before, verbosity=0)


@contextmanager
def own_copy(worker: str) -> Iterator[None]:
    """In a worker: a copy that this process uses in place of the original. worker: its name."""
    connection = connections[ALIAS]
    creation = connection.creation
    name = connection.settings_dict["NAME"]
    creation.clone_test_db(worker, verbosity=0, autoclobber=True)
    # in place: connections of other threads read the same settings
    connection.settings_dict.update(creation.get_test_db_clone_settings(worker))
    let_be_emptied(ALIAS)
    try:
        yield
    finally:
        end_other_sessions(ALIAS)
        connection.close()
        connection.settings_dict["NAME"] = name
        creation.destroy_test_db(suffix=worker, verbosity=0)


def copy_to_file(path: Path) -> None:
    """Make a migrated SQLite database from the original; without one, the user of the file migrates it."""
    original = connections[ALIAS].settings_dict["TEST"].get(MIGRATED)
    if original and connections[ALIAS].vendor == "sqlite":
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(original, path)


def create_on_server(connection: psycopg.Connection, name: str, *, migrated: bool) -> None:
    """Make a PostgreSQL database, of the original where there is one and it is to be migrated. connection:
    with autocommit."""
    original = connections[ALIAS].settings_dict["TEST"].get(MIGRATED)
    template = f' TEMPLATE "{original}"' if original and migrated else ""
    connection.execute(f'CREATE DATABASE "{name}"{template}')  # type: ignore[call-overload]
