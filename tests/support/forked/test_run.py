"""Runs of a few tests of their own in forked workers: nothing is lost, and what is left of a run ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher_project.supervisor.data_folder import ROOT
from tests.support.processes import is_alive
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the gate uses xdist")

_OF_ALL_KINDS = """
import contextlib, logging, os, signal, threading, time, warnings
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
    if os.fork() == 0:  # as a daemon would: it keeps the worker's connection, a socket, open
        for fd in map(int, os.listdir("/proc/self/fd")):
            if not os.path.exists(path := f"/proc/self/fd/{fd}") or "socket" not in os.readlink(path):
                with contextlib.suppress(OSError):
                    os.close(fd)
        while os.path.exists("test_it.py"):
            time.sleep(0.05)
        os._exit(0)
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
    time.sleep(0.3)
    pathlib.Path(f"ended.{os.getpid()}").touch()

def test_waits(thing):
    pathlib.Path(f"begun.{os.getpid()}").touch()
    time.sleep(60)
"""
_SHARING = """
import pytest

@pytest.fixture(scope="session")
def thing():
    with open("made", "a") as file:
        file.write("once ")

def test_uses_it(thing):
    pass

def test_uses_it_again(thing):
    pass
"""
_PRINTING = """
import pathlib, time

def test_{name}():
    print("printed by {name}")
    pathlib.Path("{name}").touch()
    while not pathlib.Path("{other}").exists():
        time.sleep(0.01)
    raise RuntimeError
"""


def _take_interrupts() -> None:
    """A shell lets what it starts in the background ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _started(folder: Path, *options: str) -> subprocess.Popen[str]:
    plugins = ("no:cacheprovider", "pytest_timeout", "tests.support.forked.plugin")
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder), "-ra", "--forks=2"]
    return subprocess.Popen(
        [*command, *(f"-p{plugin}" for plugin in plugins), *options],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "200",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # importing those of the gate takes most of the CPU time
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
        preexec_fn=_take_interrupts,  # noqa: PLW1509
    )


def test_failures_crashes_and_hangs_are_reported_by_name(tmp_path: Path) -> None:
    (file := tmp_path / "test_it.py").write_text(_OF_ALL_KINDS)
    process = _started(tmp_path)
    try:
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        file.unlink()
    assert process.returncode == 1, output
    *_, whole = lines = output.splitlines()
    assert re.search(r"\b4 failed, 4 passed, 1 skipped, 1 warning, 1 error in ", whole), output
    # the worker that takes a test is chance
    said = (re.sub(r"'gw\d'", "'gwN'", line) for line in lines)
    named = {line for line in said if line.startswith(("FAILED ", "ERROR test", "SKIPPED"))}
    ended = "ended with exit status 3 while running 'test_it.py::test_exits'"
    killed = "ended by signal SIGKILL while running 'test_it.py::test_is_killed'"
    assert named == {
        "FAILED test_it.py::test_fails - assert [1, 2] == [1, 3]",
        f"FAILED test_it.py::test_exits - worker 'gwN' {ended}",
        f"FAILED test_it.py::test_is_killed - worker 'gwN' {killed}",
        "FAILED test_it.py::test_hangs - Failed: Timeout (>0.5s) from pytest-timeout.",
        "ERROR test_it.py::test_ends_badly - RuntimeError: at its end",
        "SKIPPED [1] test_it.py:47: not here",
    }
    for text in ("At index 1 diff: 2 != 3", "printed\n", "Stack of sleeper", "UserWarning: careful"):
        assert text in output, output


def test_fixtures_stay_from_test_to_test(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_SHARING)
    output, _ = (process := _started(tmp_path)).communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.OK, output
    assert (tmp_path / "made").read_text() == "once "


def test_each_failure_shows_what_its_own_test_printed(tmp_path: Path) -> None:
    for name, other in (("one", "two"), ("two", "one")):
        (tmp_path / f"test_{name}.py").write_text(_PRINTING.format(name=name, other=other))
    output, _ = (process := _started(tmp_path)).communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.TESTS_FAILED, output
    shown = dict(re.findall(r"^_+ test_(one|two) _+$(.*?)^(?=[_=]{5})", output, re.MULTILINE | re.DOTALL))
    assert {name: re.findall(r"^printed by (\w+)$", text, re.MULTILINE) for name, text in shown.items()} == {
        "one": ["one"],
        "two": ["two"],
    }, output


@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGINT, os.kill), (signal.SIGINT, os.killpg), (signal.SIGKILL, os.kill)]
)
def test_workers_end_with_the_run(
    tmp_path: Path, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    """After Ctrl-C, which a terminal sends to all of them, their fixtures end first."""
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(_WAITING)
    process = _started(tmp_path)
    try:
        wait_for(lambda: len(_workers(tmp_path, "begun")) == 2, what="both tests")
        send(process.pid, number)
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


def test_a_run_ends_at_its_first_failure_with_the_option_for_it(tmp_path: Path) -> None:
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text(f"def test_fails():\n    assert 0\n{_WAITING}")
    output, _ = (process := _started(tmp_path, "--maxfail=1")).communicate()
    assert process.returncode == pytest.ExitCode.TESTS_FAILED, output
    assert "stopping after 1 failures" in output


def test_a_run_ends_when_worker_after_worker_crashes(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os, pytest\n@pytest.mark.parametrize('number', range(40))\n"
        "def test_exits(number):\n    os._exit(3)\n"
    )
    output, _ = (process := _started(tmp_path)).communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "too many workers crashed" in output
    assert "9 failed" in output, "eight restarts of two workers"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def test_it():\n    pytest.exit('enough')\n", "interrupted: enough"),
        ("def test_it():\n    raise KeyboardInterrupt\n", "interrupted: KeyboardInterrupt"),
        ("def test_it(request):\n    request.session.shouldstop = 'no more'\n", "no more"),
    ],
)
def test_a_test_can_end_the_run(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "test_it.py").write_text(f"import pytest\n{text}")
    output, _ = (process := _started(tmp_path)).communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert why in output, output


def test_a_plugin_that_breaks_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "def pytest_runtest_protocol():\n    raise RuntimeError('broken')\n"
    )
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    output, _ = (process := _started(tmp_path)).communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "internal error" in output, output
    assert "RuntimeError: broken" in output, output


def test_threads_of_the_parent_are_refused(tmp_path: Path) -> None:
    """A lock that a thread holds at the fork stays locked in the worker."""
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
