"""CPU time of processes with their descendants."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.suite.cpu import cpu_seconds, tree

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

_BURNS = "import time\nwhile time.process_time() < 0.2: pass\n"
"""More than is asked for below: the kernel counts in hundredths, and cuts off what is no whole one."""
_PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {_BURNS!r}], check=True)
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_cpu_time_of_a_child_counts_after_its_exit():
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        living = int(parent.stdout.readline())
        assert cpu_seconds([parent.pid]) >= 0.15
        assert tree([parent.pid]) == {parent.pid, living}
        parent.stdin.close()


def test_a_process_that_has_exited_costs_nothing():
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    assert cpu_seconds([gone.pid]) == 0.0
