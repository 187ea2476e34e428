"""The folders that runs write their files to, while somebody may still fetch them."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from gpu_host.local.confinement import Confinement

KEPT_SECONDS = 3600.0


def make_own_folder(name: str, parent: Path | None = None) -> Path:
    """For the runs of this process. Those of earlier ones under the same name that were killed are removed.
    parent: None for the system's folder of temporary files."""
    where = parent or Path(tempfile.gettempdir())
    for folder in where.glob(f"{name}.*"):
        pid = folder.name.removeprefix(f"{name}.").partition("-")[0]
        if pid.isdigit() and not _lives(int(pid)) and not folder.is_symlink() and _is_ours(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}.{os.getpid()}-", dir=where))


def folder_for_runs(own: Path, confinement: Confinement) -> Path:
    """Inside the worker's own folder; the models' user may write there, and nothing above it."""
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
    except OSError:  # it is another user's
        return True
    return True


def _is_ours(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.getuid()
    except OSError:  # another removed it
        return False


def remove_old(root: Path, running: Collection[str], *, now: float | None = None) -> int:
    """Those of ended runs that nobody wrote to for an hour. running: names of folders in use. Returns how
    many."""
    removed = 0
    if not root.is_dir():
        return 0
    for folder in root.iterdir():
        try:
            age = (time.time() if now is None else now) - folder.stat().st_mtime
        except OSError:
            continue  # another removed it
        if folder.name not in running and age >= KEPT_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed
