"""Clocks of single processes are really wrong, and a system that hangs meanwhile is found."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verification.proving.clocks import Clocks
from verification.proving.faults.clocks import BeatBehind, RedisBack, WorkersAhead

ASK = """
import datetime, sys, time
for _ in sys.stdin:
    print(time.time(), datetime.datetime.now().timestamp(), time.monotonic(), flush=True)
"""


@pytest.fixture
def clocks(tmp_path: Path) -> Clocks:
    made = Clocks(tmp_path, ["beat", "sweeps"])
    if made.why_not:
        pytest.skip(made.why_not)
    return made


@pytest.fixture
def process(clocks: Clocks) -> Iterator[Any]:
    """Prints its clocks for each line; its command line has the word "beat"."""
    command = [sys.executable, "-c", ASK, "beat"]
    environment = {**os.environ, **clocks.environment}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(command, env=environment, **pipes) as started:
        yield started
        started.stdin.close()


def off_by(process: Any) -> tuple[float, float, float]:
    """Seconds by which time(), datetime and the monotonic clock differ from ours."""
    process.stdin.write("?\n")
    reported = [float(word) for word in process.stdout.readline().split()]
    ours = (time.time(), time.time(), time.monotonic())
    return reported[0] - ours[0], reported[1] - ours[1], reported[2] - ours[2]


def test_a_process_named_by_a_word_has_its_own_wall_clock_and_the_true_monotonic_one(
    clocks: Clocks, process: Any
) -> None:
    for seconds in (0.0, -120.5, 3600.25, 0.0):
        clocks.shift("beat", seconds)
        clocks.shift("sweeps", 77.0)  # another clock does not affect it
        assert off_by(process) == pytest.approx((seconds, seconds, 0.0), abs=2.0)


def test_an_unknown_clock_is_refused(clocks: Clocks) -> None:
    with pytest.raises(KeyError):
        clocks.shift("web", 1.0)


@pytest.mark.parametrize("works", [True, False])
def test_a_system_that_hangs_while_a_clock_is_wrong_is_a_finding(works: bool) -> None:
    shifted: list[tuple[str, float]] = []
    trial: Any = SimpleNamespace(
        clocks=SimpleNamespace(why_not="", shift=lambda word, seconds: shifted.append((word, seconds))),
        ticked_since=lambda at: works,
        runs_begin_since=lambda at: True,
        state=object(),
    )
    fault = BeatBehind()
    assert fault.skip(trial) == ""
    fault.play(trial)
    fault.mend(trial)
    assert shifted == [("beat", -120.0), ("beat", 0.0)]
    expected = [] if works else ["with the clock off by -120 s this did not happen: sweeps run"]
    assert fault.wrongs(trial, []) == expected


def test_a_machine_without_settable_clocks_reports_why() -> None:
    trial: Any = SimpleNamespace(state=object(), clocks=SimpleNamespace(why_not="no compiler"), valkey=None)
    assert WorkersAhead().skip(trial) == "no compiler"
    trial.clocks = None
    assert "not ours" in WorkersAhead().skip(trial)
    trial.clocks = SimpleNamespace(why_not="")
    assert RedisBack().skip(trial) == "its Valkey is not the trial's own"
