"""Processes of the trial answer, and exit on request even if they ignore signals."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from verification.proving.children import Children, NoReply

ECHO = "import sys\nprint('{}', flush=True)\nfor line in sys.stdin: print(line, end='', flush=True)"
DEAF = (
    "import signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\n"
    "print('{}', flush=True)\ntime.sleep(60)"
)


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    children = Children(tmp_path, {})
    yield children
    children.close()


def test_a_child_answers_each_order(children):
    child = children.start("echo", sys.executable, "-c", ECHO, talks=True)
    assert child.receive() == {}
    assert child.ask(do="this", count=2) == {"do": "this", "count": 2}
    assert children.pids() == {"echo": child.pid}


def test_a_child_that_exits_or_does_not_answer_raises(children):
    gone = children.start("gone", sys.executable, "-c", "pass", talks=True)
    with pytest.raises(NoReply, match="gone ended"):
        gone.receive()
    deaf = children.start("deaf", sys.executable, "-c", DEAF, talks=True)
    deaf.receive()
    deaf.answer_seconds = 0.2
    with pytest.raises(NoReply, match="deaf does not answer"):
        deaf.ask(do="this")


def test_a_child_that_does_not_stop_is_killed(children):
    child = children.start("deaf", sys.executable, "-c", DEAF, talks=True)
    child.receive()
    child.stop(0.1)
    assert child.process.returncode == -signal.SIGKILL


def test_a_stopped_child_is_continued_and_ended(children):
    child = children.start("echo", sys.executable, "-c", ECHO, talks=True)
    child.receive()
    child.send(signal.SIGSTOP)
    child.stop(10.0)
    assert child.process.returncode == -signal.SIGTERM


def test_closing_ends_all_of_them(children):
    started = [children.start(f"c{n}", sys.executable, "-c", ECHO, talks=True) for n in range(3)]
    children.close()
    assert not any(child.is_running() for child in started)
    assert children.pids() == {}
