"""The data folder of `up`: its lock, its secrets, and the files with which other commands reach it.

::

    up.lock           held while `up` runs          environment.json  settings of its children
    up.json           url, keys, pids; while ready  secret_key        Django's, created once
    up.env            the same for a shell          (`. var/up.env` sets API, KEY, OPERATOR_KEY)
    secrets.json      keys and passwords, kept      db.sqlite3, valkey/, log/, run/
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from foundation.program import IN_CHECKOUT, ROOT, command_line, named_data_dir

NEW_WEBHOOK_SECRETS = "new_webhook_secrets"
"""Key in secrets.json, {tenant: secret}: created at this start; `up` shows and removes them."""
ADMIN_IS_ANOTHERS = "admin_is_anothers"
"""Key in secrets.json: true if the database's user admin has another password than the one in that file."""
_SOCKET_FOLDER_MAX = 80
"""A unix socket's path must be shorter than 108 bytes (104 on macOS), and our names have up to 20."""


class AlreadyRunning(Exception):
    """Another `up` runs on this data folder."""


class NotRunning(Exception):
    """No `up` runs on the given data folder."""


class DataFolder:
    """A data folder of `up`, running or not."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    def create(self) -> None:
        """Create the folder, readable only by its owner, because it holds secrets. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)  # one that was there may be open to all
        self.sockets.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.sockets.stat().st_uid != os.getuid():
            raise PermissionError(f"{self.sockets} belongs to another user")

    @property
    def sockets(self) -> Path:
        """The folder of unix sockets: inside this one, or, if that path is too long, in the temporary
        folder."""
        inside = self.path / "run"
        if len(os.fsencode(inside)) <= _SOCKET_FOLDER_MAX:
            return inside
        short = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"dispatcher-{os.getuid()}-{short}"

    @property
    def marker_prefix(self) -> str:
        """The common beginning of the markers (guard.py) of all runs on this folder."""
        return f"{self.path}#"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock. Raises AlreadyRunning."""
        with (self.path / "up.lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read().strip() or "unknown"
                raise AlreadyRunning(
                    f"`up` runs on {self.path} already (process {holder}): stop it, or choose another folder "
                    "with --data-dir"
                ) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield

    def is_running(self) -> bool:
        """Return True if an `up` holds the lock."""
        try:
            with (self.path / "up.lock").open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def read(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file; empty if the file does not exist."""
        try:
            return dict(json.loads((self.path / name).read_text()))
        except FileNotFoundError:
            return {}

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Write a JSON object to a file, as `write_text`."""
        self.write_text(name, json.dumps(value, indent=2))

    def write_text(self, name: str, text: str) -> None:
        """Write a file atomically, readable by the owner only. text: without its last line's end."""
        fresh = self.path / f".{name}.{os.getpid()}"
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(f"{text}\n")
        fresh.replace(self.path / name)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


def adopt_running_environment(arguments: Sequence[str] = ()) -> None:
    """Use the settings of the `up` that runs on DISPATCHER_DATA_DIR (default ``var``), unless settings are
    given, so that commands such as `manage.py shell` reach the same services.

    ``--data-dir`` in the arguments names another folder, whose settings override the environment. Raises
    NotRunning if none runs there.
    """
    named = named_data_dir(arguments)  # before any other parser runs
    if named is None and "DJANGO_SETTINGS_MODULE" in os.environ:
        return
    folder = DataFolder(named or default_folder())
    running = folder.is_running()
    environment = folder.read("environment.json") if running else {}
    if named is not None and not environment:
        raise NotRunning(
            f"`up` on {folder.path} is not ready yet: try again in a moment"
            if running
            else f"no `up` runs on {folder.path}: start it with `{command_line('up', named)}`, or name the "
            "folder of another with --data-dir"
        )
    for name, value in environment.items():
        if named is not None:
            os.environ[name] = value
        os.environ.setdefault(name, value)


def without_data_dir(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without ``--data-dir``, for a command's own parser."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        if name != "--data-dir":
            kept.append(word)
        elif not equals:
            next(words, None)
    return kept


def default_folder() -> Path:
    """Return DISPATCHER_DATA_DIR, else ``var``: in the checkout, or for an installed wheel in the current
    directory."""
    return Path(os.environ.get("DISPATCHER_DATA_DIR") or _var())


def _var() -> Path:
    return (ROOT if IN_CHECKOUT else Path.cwd()) / "var"


def to_name(folder: DataFolder) -> Path | None:
    """Return the path of a folder that commands have to be given with ``--data-dir``; None: they find it
    without."""
    return None if folder.path == _var().resolve() else folder.path


def folder_argument(text: str) -> Path:
    """Return the value of ``--data-dir``. Raises ArgumentTypeError for the empty text of an unset variable,
    which `Path` takes for the current directory."""
    if not text:
        raise ArgumentTypeError("it names no folder")
    return Path(text)
