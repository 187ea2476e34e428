"""The folders of files that runs write, kept for an hour so that callers can fetch the files."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from gpu_host.handlers.files import CACHE_SECONDS, INPUTS, remove_unused
from gpu_host.local.confinement import Confinement

KEPT_SECONDS = 3600.0


def make_own_folder(name: str, parent: Path | None = None) -> Path:
    """Make a folder for the runs of this process; remove those of earlier, killed processes under the same
    name.

    parent: None for the system's folder of temporary files."""
    where = parent or Path(tempfile.gettempdir())
    for folder in where.glob(f"{name}.*"):
        pid = folder.name.removeprefix(f"{name}.").partition("-")[0]
        if pid.isdigit() and not _lives(int(pid)) and not folder.is_symlink() and _is_ours(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}.{os.getpid()}-", dir=where))


def folder_for_runs(own: Path, confinement: Confinement) -> Path:
    """Return a folder below `own` that the models' user may write to; it may not write to `own`."""
    if (user := confinement.user) is None:
        return own
    own.chmod(0o711)
    folder = own / "runs"
    folder.mkdir(mode=0o700)
    os.chown(folder, user.uid, user.gid)
    return folder


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process belongs to another user
        return True
    return True


def _is_ours(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.getuid()
    except OSError:  # removed meanwhile
        return False


def remove_old(
    root: Path,
    running: Collection[str],
    *,
    input_seconds: float = CACHE_SECONDS,
    now: float | None = None,
) -> int:
    """Remove the folders of ended runs that were not written to for an hour, and cached inputs that were not
    used for `input_seconds`; return the number of folders.

    running: names of folders in use. now: Unix seconds."""
    removed = 0
    if not root.is_dir():
        return 0
    now = time.time() if now is None else now
    remove_unused(root / INPUTS, input_seconds, now=now)
    for folder in root.iterdir():
        if folder.name == INPUTS:
            continue
        try:
            age = now - folder.stat().st_mtime
        except OSError:
            continue  # removed meanwhile
        if folder.name not in running and age >= KEPT_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed
