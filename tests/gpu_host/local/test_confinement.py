from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from gpu_host.local import confinement
from gpu_host.local.confinement import Confinement, NoSuchUser, User, find_user
from gpu_host.local.output import folder_for_runs


def test_a_confinement_survives_the_command_line() -> None:
    one = Confinement(User("m", 1, 2, (2, 3), "/home/m"), 10, 20, 30, 40, ("HF_TOKEN",))
    other = Confinement.from_text(one.as_text())
    assert (other.user, other.open_files, other.memory_mb) == (one.user, 10, 40)


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
