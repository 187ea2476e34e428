"""Sets the limits of a model process before any code of a model runs. Linux; elsewhere only the rlimits.

The warden of each model process imports it, so it imports little: with dataclasses, pathlib and typing a
warden took twice as much CPU time to start."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_FIRST_TO_GO = "500"
"""-1000 to 1000: when memory runs out, the kernel kills a model before its worker."""


def enter(confinement: dict[str, Any]) -> None:
    """Apply the limits, in the process that becomes a model's. confinement: what
    `gpu_host.local.confinement.Confinement.as_text` wrote. Raises OSError, ValueError."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_FIRST_TO_GO)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_NOFILE, confinement["open_files"])
    _lower(resource.RLIMIT_FSIZE, confinement["file_bytes"])
    _lower(resource.RLIMIT_AS, confinement["memory_mb"] * 1024 * 1024)
    if hasattr(resource, "RLIMIT_NPROC"):
        _lower(resource.RLIMIT_NPROC, confinement["processes"])
    user = confinement["user"]
    if user is not None:
        os.setgroups(user["groups"])
        os.setgid(user["gid"])
        os.setuid(user["uid"])
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


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
