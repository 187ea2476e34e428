"""How long a run's files are kept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from gpu_host.local.output import KEPT_SECONDS, make_own_folder, remove_old


def test_folders_of_ended_runs_are_removed_after_their_time(tmp_path: Path):
    for name in ("ended", "running"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "image.png").touch()
    now = time.time()
    assert remove_old(tmp_path, ["running"], now=now + KEPT_SECONDS - 5) == 0
    assert remove_old(tmp_path, ["running"], now=now + KEPT_SECONDS + 5) == 1
    assert [folder.name for folder in tmp_path.iterdir()] == ["running"]
    assert remove_old(tmp_path / "none", []) == 0


def test_a_cached_input_that_no_run_uses_is_removed_after_its_time(tmp_path: Path):
    cache = tmp_path / "inputs"
    cache.mkdir()
    now = time.time()
    for name, age in (("unused", 7300), ("used", 100)):
        (cache / name).touch()
        os.utime(cache / name, (now - age,) * 2)
    os.utime(cache, (now - 9000,) * 2)
    assert remove_old(tmp_path, [], input_seconds=7200.0, now=now) == 0
    assert [file.name for file in cache.iterdir()] == ["used"]


def test_folders_of_a_killed_worker_are_removed_by_the_next_of_its_name(tmp_path: Path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, others, lives = (
        tmp_path / name
        for name in (f"runs-box.{ended.pid}-x", f"runs-box-2.{ended.pid}-x", f"runs-box.{os.getppid()}-x")
    )
    for folder in (left, others, lives):
        (folder / "attempt").mkdir(parents=True)
    mine = make_own_folder("runs-box", tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([others, lives, mine])
    assert mine.stat().st_mode & 0o077 == 0
