"""Commands start with any of the standard streams closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher_project.supervisor.data_folder import ROOT

CLOSED = ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"]
PROGRAM = """
import os, sys
from dispatcher_project.cli.standard_streams import open_closed_streams
open_closed_streams()
database = open(sys.argv[1], "wb", buffering=0)
assert database.fileno() > 2
print("text of this process", file=sys.stdout)
print("text of this process", file=sys.stderr)
os.system("echo text of a child; echo text of a child >&2")
assert sys.stdin.read() == ""
os._exit(3)
"""


UP = """
import sys
from dispatcher_project.cli.main import manage
try:
    manage(["manage.py", "up", "--data-dir", sys.argv[1]])
except SystemExit as end:
    sys.exit(40 + int(end.code))
"""


def status_of(closed: str, *command: str) -> int:
    """Run a command with closed streams; the others are the null device."""
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *command]
    null = subprocess.DEVNULL
    ended = subprocess.run(shell, cwd=ROOT, stdin=null, stdout=null, stderr=null, check=False, timeout=60)
    return ended.returncode


@pytest.mark.parametrize("closed", CLOSED)
def test_no_output_goes_into_a_file_that_got_the_number_of_a_closed_stream(
    tmp_path: Path, closed: str
) -> None:
    file = tmp_path / "database"
    assert status_of(closed, sys.executable, "-c", PROGRAM, str(file)) == 3
    assert file.read_bytes() == b""


@pytest.mark.parametrize("closed", CLOSED)
def test_up_begins_with_closed_streams(tmp_path: Path, closed: str) -> None:
    taken = tmp_path / "a_file"
    taken.touch()
    program = [sys.executable, "-c", UP, str(taken)]
    assert status_of(closed, *program) == 41, "refused, because its folder is a file"
