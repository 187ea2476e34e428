"""Programs that are forked are as those that are started: environment, folder, exit status, and their end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes import is_alive
from tests.support.system import forked_python
from tests.support.system.programs import Program
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario  # these have a fork server

TELLS = """
import json, os, sys
from django.conf import settings
database = settings.DATABASES["default"]["NAME"]
print(json.dumps([os.getcwd(), os.environ["GIVEN"], settings.BROKER_URL, database]))
sys.exit(3)
"""
WAITS = """
import pathlib, os, signal
pathlib.Path("pid.new").write_text(str(os.getpid()))
pathlib.Path("pid.new").rename("pid")
signal.pause()
"""


def shell(program: str) -> list[str]:
    return ["manage.py", "shell", "--no-imports", "-c", program]


@pytest.mark.parametrize("number", [1, 2])
def test_a_program_has_its_own_environment_folder_and_status(tmp_path: Path, number: int) -> None:
    """Also the second one, with other services than the first."""
    given = {
        **os.environ,
        "GIVEN": f"given {number}",
        "BROKER_URL": f"redis://127.0.0.1:{number}/0",
        "DISPATCHER_TEST_DATABASE_URL": f"sqlite:///{tmp_path}/{number}.sqlite3",
    }
    with (tmp_path / "out").open("w+") as out:
        command = [sys.executable, *shell(TELLS)]
        program = Program(command, given, outputs=(out.fileno(), out.fileno()), folder=tmp_path)
        assert program.wait(60) == 3
        out.seek(0)
        assert json.load(out) == [
            str(tmp_path),
            f"given {number}",
            f"redis://127.0.0.1:{number}/0",
            f"{tmp_path}/{number}.sqlite3",
        ]


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda process: process.send_signal(signal.SIGTERM), 128 + signal.SIGTERM),
        (lambda process: process.kill(), -signal.SIGKILL),
    ],
    ids=["stopped", "killed"],
)
def test_a_scripts_program_ends_with_its_python3(
    tmp_path: Path, end: Callable[[subprocess.Popen[bytes]], None], code: int
) -> None:
    command = [sys.executable, "-S", "-E", forked_python.__file__, *shell(WAITS)]
    process = subprocess.Popen(command, cwd=tmp_path)
    wait_for((tmp_path / "pid").exists, seconds=60, what="the program")
    pid = int((tmp_path / "pid").read_text())
    assert pid != process.pid
    end(process)
    assert process.wait(30) == code
    wait_for(lambda: not is_alive(pid), what="its end")
