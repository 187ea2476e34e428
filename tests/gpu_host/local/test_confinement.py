from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_host.local import confinement
from gpu_host.local.confinement import Confinement, NoSuchUser, User, find_user
from gpu_host.local.output import folder_for_runs
from gpu_host.local.process import ROOT


def test_a_confinement_survives_the_command_line() -> None:
    one = Confinement(User("m", 1, 2, (2, 3), "/home/m"), 10, 20, 30, 40, ("HF_TOKEN",))
    other = json.loads(one.as_text())
    user = other["user"]
    assert (user["uid"], user["gid"], user["groups"]) == (1, 2, [2, 3])
    limits = {"open_files": 10, "processes": 20, "file_bytes": 30, "memory_mb": 40}
    assert limits.items() <= other.items()


def test_a_warden_imports_little() -> None:
    """One starts with each model process."""
    imports = "import gpu_host.local.limits, gpu_host.local.warden"
    says = f"import sys; sys.path.append('.'); {imports}; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", says]
    loaded = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert "gpu_host.local.warden" in loaded
    assert {"dataclasses", "pathlib", "typing"}.isdisjoint(loaded)


def test_the_workers_own_user_is_no_other_user() -> None:
    assert find_user(pwd.getpwuid(os.geteuid()).pw_name) is None


@pytest.mark.parametrize(
    ("name", "uid", "why"),
    [
        ("there-is-none", 0, "no such user"),
        ("root", 1000, "can't run as root"),
        ("nobody", 1000, "only root"),
    ],
)
def test_an_impossible_user_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, uid: int, why: str
) -> None:
    monkeypatch.setattr(confinement.os, "geteuid", lambda: uid)
    with pytest.raises(NoSuchUser, match=why):
        find_user(name)


def test_without_another_user_the_folder_stays_as_it_is(tmp_path: Path) -> None:
    assert folder_for_runs(tmp_path, Confinement()) == tmp_path
