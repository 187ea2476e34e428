"""The folder of a running `up`: its lock, its secrets, and the files that tell others how to reach it.

::

    up.lock           held while `up` runs          environment.json  what its children were started with
    up.json           url, keys, pids; while ready  secret_key        Django's, made once
    secrets.json      keys and passwords, kept      db.sqlite3, valkey/, log/, run/
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from foundation.program import IN_CHECKOUT, ROOT, command_line

NEW_WEBHOOK_SECRETS = "new_webhook_secrets"
"""In secrets.json, {tenant: secret}: made at this start, taken out by `up` when it shows them."""
ADMIN_IS_ANOTHERS = "admin_is_anothers"
"""In secrets.json: the database's admin does not have the password that stands there."""
_SOCKET_FOLDER_MAX = 80
"""A unix socket's path must stay under 108 bytes (104 on macOS), and ours have names of up to 20."""


class AlreadyRunning(Exception):
    """Another `up` runs on this data folder."""


class NotRunning(Exception):
    """No `up` runs on the data folder that was named."""


class DataFolder:
    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    def create(self) -> None:
        """Raises OSError. Only the owner may look into it: it holds secrets."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path.chmod(0o700)  # one that was there may be open to all
        self.sockets.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.sockets.stat().st_uid != os.getuid():
            raise PermissionError(f"{self.sockets} belongs to somebody else")

    @property
    def sockets(self) -> Path:
        """Where unix sockets go: in the folder, or under a short name in the system's temporary folder."""
        inside = self.path / "run"
        if len(os.fsencode(inside)) <= _SOCKET_FOLDER_MAX:
            return inside
        short = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"dispatcher-{os.getuid()}-{short}"

    @property
    def marker_prefix(self) -> str:
        """Begins the marker (guard.py) of every run on this folder."""
        return f"{self.path}#"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Raises AlreadyRunning."""
        with (self.path / "up.lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                holder = lock.read().strip() or "unknown"
                raise AlreadyRunning(
                    f"`up` runs on {self.path} already (process {holder}): stop that one, or choose another "
                    "folder with --data-dir"
                ) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield

    def is_running(self) -> bool:
        """Whether an `up` holds the lock."""
        try:
            with (self.path / "up.lock").open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def read(self, name: str) -> dict[str, Any]:
        """The JSON object in that file; empty if there is none."""
        try:
            return dict(json.loads((self.path / name).read_text()))
        except FileNotFoundError:
            return {}

    def write(self, name: str, value: dict[str, Any]) -> None:
        """In one step, readable by the owner only."""
        fresh = self.path / f".{name}.{os.getpid()}"
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(value, file, indent=2)
            file.write("\n")
        fresh.replace(self.path / name)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


def adopt_running_environment(arguments: Sequence[str] = ()) -> None:
    """Gives this process the settings of the `up` that runs on DISPATCHER_DATA_DIR (default ``var``), if one
    does and nobody chose settings: so `manage.py shell` or `create_key` beside it reach the same parts.

    ``--data-dir`` among the arguments names the folder, and its settings go before the environment's. Raises
    NotRunning if none runs there.
    """
    named = _named_folder(arguments)
    if named is None and "DJANGO_SETTINGS_MODULE" in os.environ:
        return
    folder = DataFolder(named or default_folder())
    environment = folder.read("environment.json") if folder.is_running() else {}
    if named is not None and not environment:
        raise NotRunning(
            f"no `up` is ready on {folder.path}: start it with `{command_line(f'up --data-dir {named}')}`"
        )
    for name, value in environment.items():
        if named is not None:
            os.environ[name] = value
        os.environ.setdefault(name, value)


def without_data_dir(arguments: Sequence[str]) -> list[str]:
    """The arguments for a command's own parser, which need not know the option."""
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
    """DISPATCHER_DATA_DIR, else ``var`` in the checkout; of an installed wheel, in the current directory."""
    return Path(os.environ.get("DISPATCHER_DATA_DIR") or (ROOT if IN_CHECKOUT else Path.cwd()) / "var")


def _named_folder(arguments: Sequence[str]) -> Path | None:
    """The value of the last ``--data-dir``, before any other parser looks."""
    found = None
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--data-dir":
            found = Path(value if equals else "".join(arguments[place + 1 : place + 2]))
    return found
