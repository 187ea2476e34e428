"""Limits of a model process, set by its warden before any code of a model runs. Linux; elsewhere only the
rlimits. Standard library only: the warden imports it.

Not confined: as the same user, model code can read all files of that user (docs/reference/model_code.md)."""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import resource
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_FIRST_TO_GO = "500"
"""-1000 to 1000: when memory runs out, the kernel kills a model before its worker."""


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
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Confinement:
        said = json.loads(text)  # written by `as_text`
        user = said.pop("user")
        return cls(user=None if user is None else User(**{**user, "groups": tuple(user["groups"])}), **said)

    def enter(self) -> None:
        """Apply the limits, in the process that becomes a model's. Raises OSError, ValueError."""
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _lower(resource.RLIMIT_NOFILE, self.open_files)
        _lower(resource.RLIMIT_FSIZE, self.file_bytes)
        _lower(resource.RLIMIT_AS, self.memory_mb * 1024 * 1024)
        if hasattr(resource, "RLIMIT_NPROC"):
            _lower(resource.RLIMIT_NPROC, self.processes)
        if self.user is not None:
            os.setgroups(self.user.groups)
            os.setgid(self.user.gid)
            os.setuid(self.user.uid)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)


DEFAULT = Confinement()


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


def hide_process() -> None:
    """Deny other processes of the same user access to the memory, environment and open files of this one.

    No core is written, and debuggers need root."""
    _prctl(_PR_SET_DUMPABLE, 0)


def _lower(limit: int, most: int) -> None:
    """Lower a limit, never above the hard limit of this process."""
    if most:
        _, hard = resource.getrlimit(limit)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")
