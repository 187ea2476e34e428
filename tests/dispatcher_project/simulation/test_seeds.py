"""Sixty short histories of the real protocol, a law broken in none; and the same seed is the same history."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher_project.embedded import find_valkey
from dispatcher_project.supervisor.data_folder import ROOT

pytestmark = [
    pytest.mark.sqlite_only,
    pytest.mark.long,
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary on this machine"),
]
SEEDS, PARTS = 60, 2


def simulate(*arguments: str, hash_seed: str = "random") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "simulate", *arguments],
        cwd=ROOT,
        env={**os.environ, "DISPATCHER_NO_BOOTSTRAP": "1", "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_no_law_is_broken(part: int) -> None:
    each = SEEDS // PARTS
    size = ("--jobs", "10", "--faults", "10", "--processes", "1")
    done = simulate("--first", str(part * each), "--seeds", str(each), *size)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert f"{each} seeds in" in done.stdout
    assert "no law broken" in done.stdout


def test_a_seed_replays_exactly(tmp_path: Path) -> None:
    """In another process, with another order of hashes."""
    histories = []
    for hash_seed in ("1", "2"):
        file = tmp_path / f"{hash_seed}.txt"
        done = simulate("--seed", "3", "--jobs", "16", "--history", str(file), hash_seed=hash_seed)
        assert done.returncode == 0, done.stderr
        histories.append(file.read_text())
    assert histories[0] == histories[1]
    assert len(histories[0].splitlines()) > 500


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--only", "nope"), "no fault is named nope; there are beat_down, "),
        (("--seeds", "0"), "is not a positive number"),
        (("--faults", "-1"), "must not be negative"),
    ],
)
def test_bad_arguments_are_told_in_one_line(arguments: tuple[str, ...], says: str) -> None:
    done = simulate(*arguments)
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr
