"""Limits of a model process. Its warden sets them (`gpu_host.local.limits`).

Not confined: as the same user, model code can read all files of that user (docs/reference/model_code.md)."""

from __future__ import annotations

import json
import os
import pwd
from dataclasses import asdict, dataclass


class NoSuchUser(Exception):
    """The message says why models can't run as that user."""


@dataclass(frozen=True, slots=True)
class User:
    """A user other than the worker's."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


@dataclass(frozen=True, slots=True)
class Confinement:
    """The limits of each model process; 0: the system's limit.

    user: None for the worker's own. processes: of the user in all. environment: names of variables that model
    code sees beside the usual ones."""

    user: User | None = None
    open_files: int = 65_536
    processes: int = 0
    file_bytes: int = 0
    memory_mb: int = 0
    environment: tuple[str, ...] = ()

    def as_text(self) -> str:
        """Return it as JSON, for `limits.enter` in the warden."""
        return json.dumps(asdict(self))


DEFAULT_CONFINEMENT = Confinement()


def find_user(name: str) -> User | None:
    """Return the user of this name, or None if this process runs as that user. Raises NoSuchUser."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise NoSuchUser(f"models can't run as {name!r}: there is no such user") from None
    if found.pw_uid == os.geteuid():
        return None
    if found.pw_uid == 0:
        raise NoSuchUser("models can't run as root")
    if os.geteuid() != 0:
        raise NoSuchUser(f"models can't run as {name!r}: only root starts processes of other users")
    groups = tuple(os.getgrouplist(name, found.pw_gid))
    return User(name, found.pw_uid, found.pw_gid, groups, found.pw_dir)
