"""`restore FILE`: a backup in place of an installation's database and secrets. Without Django."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from foundation.program import command_line, usage_name

from .backup import (
    DATABASES,
    FORMAT,
    MANIFEST,
    POSTGRESQL,
    SECRETS,
    SQLITE,
    BackupError,
    Done,
    add_shared,
    client_address,
    database_url,
    given_key,
    hash_of,
    read_key,
    report,
    run_client,
    sqlite_path,
)
from .data_folder import DataFolder

_USED_TABLES = ("jobs_tenant", "auth_user")
"""An installation is used as soon as one of these has a row."""
_BUSY_SECONDS = 60.0


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog=usage_name("restore"),
        description="Put a backup in place of this installation's database and secrets, while nothing runs.",
    )
    arguments.add_argument("file", type=Path, help="file that `backup` wrote")
    add_shared(arguments)
    arguments.add_argument(
        "--overwrite", action="store_true", help="replace an installation that has tenants or users"
    )
    return arguments


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, 2 for a backup that could not be restored."""
    options = parser().parse_args(arguments)
    folder = DataFolder(options.data_dir)
    return report(
        "restore",
        lambda: restore(options.file, folder, os.environ, overwrite=options.overwrite),
        as_json=options.json,
    )


def restore(file: Path, folder: DataFolder, environment: Mapping[str, str], *, overwrite: bool) -> Done:
    """Replace the database and the secrets by those of a backup. The line has the next step.

    overwrite: also those of an installation with tenants or users; a replaced file of the data folder stays
    beside the new one. Raises BackupError, AlreadyRunning, OSError, sqlite3.Error and tarfile.TarError.
    """
    folder.create()
    with folder.locked(), tempfile.TemporaryDirectory(prefix=".restore-", dir=folder.path) as unpacked:
        place = Path(unpacked)
        manifest = _unpack(file, place)
        url = database_url(folder, environment, may_be_new=True)
        key = given_key(environment) or read_key(place / "secret_key") or read_key(folder.path / "secret_key")
        salt = manifest["secret_key"].partition("$")[0]
        if key is None or hash_of(key, salt) != manifest["secret_key"]:
            raise BackupError(
                "the backup's secrets are encrypted under another secret key: set DJANGO_SECRET_KEY to the "
                "key of that installation"
            )
        _require_kind(manifest["database"], url)
        if not overwrite and (reason := _is_used(url)):
            raise BackupError(f"{reason}: restore into an empty one, or add --overwrite to replace it")
        if manifest["database"] == SQLITE:
            _check_sqlite(place / SQLITE)
            _put(place / SQLITE, sqlite_path(url))
        else:
            _require_no_sessions(url)
            run_client(["pg_restore", "--clean", "--if-exists", "--no-owner", "--no-privileges",
                 "--single-transaction", "--exit-on-error", str(place / POSTGRESQL)], url)  # fmt: skip
        for name in SECRETS:
            if (place / name).exists():
                _put(place / name, folder.path / name)
    redis = "empty or restart Redis (its index is rebuilt), " if environment.get("REDIS_URL") else ""
    then = f"{redis}run `{command_line('migrate')}` and start the services, or start `up`"
    facts = {
        "file": str(file),
        "made_at": manifest["made_at"],
        "database": DATABASES[manifest["database"]],
        "next": then,
    }
    return Done(f"restored what {file} held at {manifest['made_at']}; now {then}", facts)


def _unpack(file: Path, place: Path) -> dict[str, Any]:
    """Write the files of a backup into the folder, only those whose names are known. Return its manifest."""
    if not file.exists():
        raise BackupError(f"there is no file {file}")
    try:
        with tarfile.open(file) as tar:
            for name in (MANIFEST, SQLITE, POSTGRESQL, *SECRETS):
                with contextlib.suppress(KeyError):
                    source = tar.extractfile(name)
                    if source is not None:
                        with source, (place / name).open("xb") as out:
                            shutil.copyfileobj(source, out)
        manifest = dict(json.loads((place / MANIFEST).read_text()))
    except (tarfile.TarError, FileNotFoundError, ValueError, EOFError) as error:
        (why, *_) = str(error).splitlines() or [type(error).__name__]  # tarfile adds a line for each format
        raise BackupError(f"{file} is not a backup, or is cut off: {why.rstrip(':')}") from None
    if manifest.get("format") != FORMAT:
        raise BackupError(f"{file} was made by a newer version: restore it with that version")
    return manifest


def _require_kind(kind: str, url: str) -> None:
    wanted = SQLITE if url.startswith("sqlite:") else POSTGRESQL
    if kind != wanted:
        raise BackupError(f"the backup is of {DATABASES[kind]}, and DATABASE_URL names {DATABASES[wanted]}")


def _is_used(url: str) -> str:
    """Why that database is in use; empty if it is not."""
    counts = _sqlite_counts(url) if url.startswith("sqlite:") else _postgresql_counts(url)
    return next((f"{_shown(url)} has rows in {table}" for table, count in counts if count), "")


def _sqlite_counts(url: str) -> Iterator[tuple[str, int]]:
    path = sqlite_path(url)
    if not path.exists():
        return
    with contextlib.closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as database:
        known = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in _USED_TABLES:
            if table in known:
                yield table, database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def _postgresql_counts(url: str) -> Iterator[tuple[str, int]]:
    import psycopg

    address, password = client_address(url)
    try:
        with psycopg.connect(address, password=password or None, connect_timeout=10) as database:
            for table in _USED_TABLES:
                row = database.execute("SELECT to_regclass(%s)", (table,)).fetchone()
                if row and row[0]:
                    counted = database.execute(f"SELECT count(*) FROM {table}").fetchone()
                    yield table, counted[0] if counted else 0
    except psycopg.Error as error:
        raise BackupError(f"{_shown(url)} does not answer: {error}") from None


def _require_no_sessions(url: str) -> None:
    import psycopg

    address, password = client_address(url)
    with psycopg.connect(address, password=password or None, connect_timeout=10) as database:
        row = database.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        ).fetchone()
    if row and row[0]:
        raise BackupError(
            f"{row[0]} sessions use {_shown(url)}: stop the web, the workers and beat on every host first"
        )


def _shown(url: str) -> str:
    """The database without its password."""
    parts = urlsplit(url)
    return str(sqlite_path(url)) if parts.scheme == "sqlite" else f"{parts.hostname}{parts.path}"


def _check_sqlite(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        (found,) = database.execute("PRAGMA quick_check").fetchone()
    if found != "ok":
        raise BackupError(f"the backup's database is damaged: {found}")


def _put(source: Path, target: Path) -> None:
    """Move a file into place, for its owner only. The replaced one stays beside it, with its log."""
    source.chmod(0o600)
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    for suffix in ("-wal", "-shm", ""):
        old = target.with_name(target.name + suffix)
        if old.exists():
            old.rename(target.with_name(f"{target.name}.replaced-{now}{suffix}"))
    shutil.move(source, target)
