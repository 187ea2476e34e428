"""kill -9 of the supervisor leaves nothing behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import pytest

from dispatcher_project.supervisor.guard import MARKER_VARIABLE, marked_processes
from gpu_host.local.process import model_environment
from tests.support.processes import is_alive
from tests.support.supervised import Run, child
from tests.support.waiting import wait_for

# The grandchild leaves the process group and its parent's session, as a daemon would.
WITH_GRANDCHILD = """
import subprocess
pause = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
grandchild = subprocess.Popen(pause, start_new_session=True)
with open(f"{folder}/grandchild", "w") as file:
    file.write(str(grandchild.pid))
notify("READY=1")
signal.pause()
"""


def test_sigkill_leaves_no_child(supervise: Callable[..., Run]) -> None:
    run = supervise([child("valkey")], [child("web"), child("worker")])
    pids = run.wait_ready()
    run.process.kill()
    run.process.wait()
    wait_for(lambda: not any(is_alive(pid) for pid in pids.values()), seconds=10)
    assert "stop web" not in run.notes()


@pytest.mark.skipif(sys.platform != "linux", reason="finds grandchildren through /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_grandchild_is_left_however_the_supervisor_ends(
    supervise: Callable[..., Run], number: signal.Signals
) -> None:
    run = supervise([child("worker", WITH_GRANDCHILD)])
    pids = run.wait_ready()
    grandchild = int((run.folder / "grandchild").read_text())
    assert grandchild in marked_processes(f"{run.folder}#")
    run.process.send_signal(number)
    run.process.wait(20)
    wait_for(lambda: not any(is_alive(pid) for pid in [grandchild, *pids.values()]), seconds=10)


def test_a_killed_guard_is_replaced(supervise: Callable[..., Run]) -> None:
    run = supervise([child("web", "notify('READY=1')\nwhile True: time.sleep(0.1)")])
    before = run.wait_ready()

    os.kill(before["guard"], signal.SIGKILL)
    wait_for(lambda: run.pids()["guard"] != before["guard"])
    run.process.kill()
    run.process.wait()
    wait_for(lambda: not is_alive(run.pids()["web"]) and not is_alive(run.pids()["guard"]), seconds=10)


def test_model_processes_have_the_marker_too() -> None:
    assert model_environment({MARKER_VARIABLE: "folder#run"}) == {MARKER_VARIABLE: "folder#run"}
