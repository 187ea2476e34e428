"""`backup FILE`: the database and the data folder's secrets in one tar file. Without Django.

Redis is not in it: its index is rebuilt from the database. Nor is a secret key of the environment: the file
has a salted hash, with which `restore` refuses another key.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from foundation.program import usage_name

from .data_folder import AlreadyRunning, DataFolder, default_folder, folder_argument

MANIFEST, SQLITE, POSTGRESQL = "manifest.json", "db.sqlite3", "database.dump"
DATABASES = {SQLITE: "SQLite", POSTGRESQL: "PostgreSQL"}
SECRETS = ("secret_key", "secrets.json")
"""Files of the data folder that are secrets and exist nowhere else."""
FORMAT = 1
_OURS = ("prepare_threshold",)
"""Options of DATABASE_URL that PostgreSQL's own programs do not know."""
_KEYS = ("DISPATCHER_SECRET_KEY", "DJANGO_SECRET_KEY")
_BUSY_SECONDS = 60.0


class BackupError(Exception):
    """A backup or restore could not be made; the message has the remedy."""


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog=usage_name("backup"),
        description="Write the database and the data folder's secrets into one file, also while jobs run. "
        "The file is as secret as they are.",
    )
    arguments.add_argument("file", type=Path, help="new tar file")
    add_shared(arguments)
    return arguments


def add_shared(arguments: argparse.ArgumentParser) -> None:
    arguments.add_argument("--json", action="store_true", help="print JSON, for programs")
    arguments.add_argument(
        "--data-dir",
        type=folder_argument,
        default=default_folder(),
        help="folder of database and secrets, if DATABASE_URL names no other database (default %(default)s)",
    )


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, 2 for a backup that could not be made."""
    options = parser().parse_args(arguments)
    return report(
        "backup", lambda: backup(options.file, DataFolder(options.data_dir), os.environ), as_json=options.json
    )


@dataclass(frozen=True, slots=True)
class Done:
    """line: for a person. facts: the same as JSON."""

    line: str
    facts: Mapping[str, object]


def report(command: str, act: Callable[[], Done], *, as_json: bool) -> int:
    """Run and print. Return the exit status."""
    try:
        done = act()
    except (BackupError, AlreadyRunning, OSError, sqlite3.Error, tarfile.TarError) as error:
        sys.stderr.write(f"{command}: {error}\n")
        return 2
    sys.stdout.write(f"{json.dumps(done.facts) if as_json else done.line}\n")
    return 0


def backup(file: Path, folder: DataFolder, environment: Mapping[str, str]) -> Done:
    """Write a new backup.

    folder: of `up`, running or not; it need not exist where `environment` has DATABASE_URL and a secret key.
    Raises BackupError, OSError and sqlite3.Error.
    """
    if not file.parent.is_dir():
        raise BackupError(f"there is no folder {file.parent}")
    if file.exists():
        raise BackupError(f"{file} exists already: choose another name")
    url = database_url(folder, environment)
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=file.resolve().parent) as made:
        place = Path(made)
        kind = _dump(url, place)
        kept = [name for name in SECRETS if (folder.path / name).exists()]
        for name in kept:
            shutil.copyfile(folder.path / name, place / name)
        manifest = {
            "format": FORMAT,
            "database": kind,
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "secret_key": hash_of(_secret_key(folder.path, environment), secrets.token_hex(16)),
        }
        (place / MANIFEST).write_text(json.dumps(manifest))
        packed = place / "packed"
        with (
            os.fdopen(os.open(packed, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out,
            tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as tar,
        ):
            for name in (MANIFEST, kind, *kept):
                tar.add(place / name, arcname=name)
        os.link(packed, file)  # never over another file
    with_key = (
        "with its secret key" if "secret_key" in kept else "without the environment's secret key: keep that"
    )
    size = file.stat().st_size
    facts = {
        "file": str(file),
        "bytes": size,
        "database": DATABASES[kind],
        "made_at": manifest["made_at"],
        "has_secret_key": "secret_key" in kept,
    }
    return Done(f"{file}: {size / 1e6:.1f} MB, {with_key}", facts)


def database_url(folder: DataFolder, environment: Mapping[str, str], *, may_be_new: bool = False) -> str:
    """The DATABASE_URL of the `up` that runs there, of the environment, or of the folder's SQLite."""
    if folder.is_running():
        with contextlib.suppress(KeyError):
            return str(folder.read("environment.json")["DATABASE_URL"])
    if url := environment.get("DATABASE_URL"):
        return url
    path = folder.path / SQLITE
    if not may_be_new and not path.exists():
        raise BackupError(f"{path} does not exist: name the data folder with --data-dir, or set DATABASE_URL")
    return f"sqlite:///{path}"


def _dump(url: str, place: Path) -> str:
    """Write the database into the folder; return the file's name."""
    if not url.startswith("sqlite:"):
        run_client(["pg_dump", "--format=custom", f"--file={place / POSTGRESQL}"], url)
        return POSTGRESQL
    path = sqlite_path(url)
    with (
        contextlib.closing(
            sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
        ) as source,
        contextlib.closing(sqlite3.connect(place / SQLITE)) as copy,
    ):
        source.backup(copy)  # one step: one moment of the database
        copy.execute("PRAGMA journal_mode=DELETE")
    return SQLITE


def sqlite_path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path.removeprefix("/"))).resolve()


def client_address(url: str) -> tuple[str, str]:
    """A DATABASE_URL as PostgreSQL's own programs take it, without its password; and the password."""
    parts = urlsplit(url)
    known = [(name, value) for name, value in parse_qsl(parts.query) if name not in _OURS]
    user, _, host = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    netloc = f"{name}@{host}" if name else host
    return urlunsplit(("postgresql", netloc, parts.path, urlencode(known), "")), unquote(password)


def run_client(command: list[str], url: str) -> None:
    """Run one of PostgreSQL's programs on that database. Its password is not on the command line."""
    program = shutil.which(command[0])
    if program is None:
        raise BackupError(
            f"there is no {command[0]} here: install PostgreSQL's client programs (postgresql-client), or "
            "run it on the database's host"
        )
    address, password = client_address(url)
    variables = {**os.environ, **({"PGPASSWORD": password} if password else {})}
    done = subprocess.run(
        [program, f"--dbname={address}", *command[1:]],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise BackupError(said[0] if said else f"{command[0]} ended with status {done.returncode}")


def _secret_key(folder: Path, environment: Mapping[str, str]) -> str:
    key = given_key(environment) or read_key(folder / "secret_key")
    if key is None:
        raise BackupError(
            f"there is no secret key in {folder} or DJANGO_SECRET_KEY: without it stored secrets are lost"
        )
    return key


def given_key(environment: Mapping[str, str]) -> str | None:
    return next((environment[name] for name in _KEYS if environment.get(name)), None)


def read_key(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return None


def hash_of(key: str, salt: str) -> str:
    """``salt$hex``; slow, because a person may have chosen a short key."""
    return f"{salt}${hashlib.pbkdf2_hmac('sha256', key.encode(), salt.encode(), 200_000).hex()}"
