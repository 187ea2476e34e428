"""How long a run's files stay."""

from __future__ import annotations

import time
from pathlib import Path

from gpus.local.output import KEPT_SECONDS, remove_old


def test_folders_of_ended_runs_leave_after_their_time(tmp_path: Path):
    for name in ("ended", "running"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "image.png").touch()
    now = time.time()
    assert remove_old(tmp_path, ["running"], now=now + KEPT_SECONDS - 5) == 0
    assert remove_old(tmp_path, ["running"], now=now + KEPT_SECONDS + 5) == 1
    assert [folder.name for folder in tmp_path.iterdir()] == ["running"]
    assert remove_old(tmp_path / "none", []) == 0
