"""Runs of a few tests of their own in forked workers: nothing is lost, and what is left of a run ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher_project.supervisor.data_folder import ROOT
from tests.support.processes import is_alive
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the gate uses xdist")

_OF_ALL_KINDS = """
import logging, os, signal, threading, time, warnings
import pytest

@pytest.fixture
def bad_end():
    yield
    raise RuntimeError("at its end")

def test_passes():
    pass

def test_fails(tmp_path):
    print("printed")
    logging.getLogger("x").error("logged")
    assert [1, 2] == [1, 3]

def test_exits():
    os._exit(3)

def test_follows_a_crash():
    pass

def test_is_killed():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.timeout(0.5)
def test_hangs():
    threading.Thread(target=time.sleep, args=(3,), daemon=True, name="sleeper").start()
    time.sleep(60)

def test_warns():
    warnings.warn("careful", UserWarning)

def test_ends_badly(bad_end):
    pass

def test_is_skipped():
    pytest.skip("not here")
"""
_WAITING = """
import os, pathlib, time
import pytest

@pytest.fixture(scope="session")
def thing():
    yield
    pathlib.Path(f"ended.{os.getpid()}").touch()

def test_waits(thing):
    pathlib.Path(f"begun.{os.getpid()}").touch()
    time.sleep(60)
"""


def _started(folder: Path, *options: str) -> subprocess.Popen[str]:
    plugins = ("no:django", "no:cacheprovider", "tests.support.forked.plugin")
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder), "-ra", "--forks=2"]
    return subprocess.Popen(
        [*command, *(f"-p{plugin}" for plugin in plugins), *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_failures_crashes_and_hangs_are_reported_by_name(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_OF_ALL_KINDS)
    process = _started(tmp_path)
    output, _ = process.communicate()
    assert process.returncode == 1, output
    *_, whole = lines = output.splitlines()
    assert re.search(r"\b4 failed, 4 passed, 1 skipped, 1 warning, 1 error in ", whole), output
    named = {line for line in lines if line.startswith(("FAILED ", "ERROR test", "SKIPPED"))}
    ended = "ended with exit status 3 while running 'test_it.py::test_exits'"
    killed = "ended by signal SIGKILL while running 'test_it.py::test_is_killed'"
    assert named == {
        "FAILED test_it.py::test_fails - assert [1, 2] == [1, 3]",
        f"FAILED test_it.py::test_exits - worker 'gw0' {ended}",
        f"FAILED test_it.py::test_is_killed - worker 'gw2' {killed}",
        "FAILED test_it.py::test_hangs - Failed: Timeout (>0.5s) from pytest-timeout.",
        "ERROR test_it.py::test_ends_badly - RuntimeError: at its end",
        "SKIPPED [1] test_it.py:39: not here",
    }
    for text in ("At index 1 diff: 2 != 3", "printed\n", "Stack of sleeper", "UserWarning: careful"):
        assert text in output, output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_run(tmp_path: Path, number: signal.Signals) -> None:
    """After Ctrl-C their fixtures end first."""
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(_WAITING)
    process = _started(tmp_path)
    try:
        wait_for(lambda: len(_workers(tmp_path, "begun")) == 2, what="both tests")
        process.send_signal(number)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    workers = _workers(tmp_path, "begun")
    wait_for(lambda: not any(map(is_alive, workers)), seconds=10, what="the workers' ends")
    if number is signal.SIGINT:
        assert (process.returncode, "KeyboardInterrupt" in output) == (pytest.ExitCode.INTERRUPTED, True), (
            output
        )
        assert _workers(tmp_path, "ended") == workers
    else:
        assert _workers(tmp_path, "ended") == set()


def test_a_run_ends_at_its_first_failure_if_told_to(tmp_path: Path) -> None:
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(f"def test_fails():\n    assert 0\n{_WAITING}")
    output, _ = (process := _started(tmp_path, "--maxfail=1")).communicate()
    assert process.returncode == pytest.ExitCode.TESTS_FAILED, output
    assert "stopping after 1 failures" in output


def test_threads_of_the_parent_are_refused(tmp_path: Path) -> None:
    """A lock that one holds at the fork stays locked in the worker."""
    (tmp_path / "test_it.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(20,), name='ticker', daemon=True).start()\n"
        "def test_it():\n    pass\n"
    )
    output, _ = (process := _started(tmp_path)).communicate()
    assert process.returncode == pytest.ExitCode.USAGE_ERROR, output
    assert "importing the tests started threads (ticker): use -n in place of --forks" in output


def _workers(folder: Path, what: str) -> set[int]:
    return {int(path.suffix[1:]) for path in folder.glob(f"{what}.*")}
