"""The folders that runs write their files to, while somebody may still fetch them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from pathlib import Path

KEPT_SECONDS = 3600.0


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
