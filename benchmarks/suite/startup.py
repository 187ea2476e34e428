"""Time until `up` is ready, on a folder that it has used before, and start-up time of commands.

Without its demo fleet, as everywhere else here; `--seconds` has no effect, `--rounds` does."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from foundation.program import OWN_COMMAND, program_name
from verification.proving.terminal import say

from .contenders import Dispatcher
from .environment import CannotMeasure
from .suite import Suite

COMMANDS = (
    ("version",),
    ("help",),
    ("submit", "--help"),
    ("job", "--help"),
    ("doctor", "--help"),
    ("check",),
)


def measure(suite: Suite) -> dict[str, Any]:
    """Run the benchmark."""
    ours = Dispatcher(suite.env)
    ready: list[float] = []
    try:
        began = time.monotonic()
        ours.start()
        first = time.monotonic() - began
        settings = ours.system.settings()
        for _ in range(suite.options.rounds):
            ours.stop(keep_database=True)
            began = time.monotonic()
            ours.start(folder=ours.folder)
            ready.append(round(time.monotonic() - began, 2))
            say(f"up is ready after {ready[-1]:.2f} s")
        commands = {" ".join(command): _timed(suite, command, settings) for command in COMMANDS}
    finally:
        ours.stop()
    for name, seconds in commands.items():
        say(f"{program_name()} {name:<16} {seconds:.2f} s")
    return {
        "up_first_seconds": round(first, 2),
        "up_warm_seconds": {"rounds": ready, "median": median(ready)},
        "command_seconds": commands,
    }


def _timed(suite: Suite, command: tuple[str, ...], settings: Mapping[str, str]) -> float:
    """Return the median, seconds, after one call that writes the bytecode."""
    environment = {**suite.env.children.environment, **settings, "DISPATCHER_NO_BOOTSTRAP": "1"}
    taken = []
    for _ in range(suite.options.rounds + 1):
        began = time.monotonic()
        ended = subprocess.run(
            [*OWN_COMMAND, *command], env=environment, capture_output=True, check=False,
            cwd=os.getcwd(),
        )  # fmt: skip
        if ended.returncode:
            raise CannotMeasure(f"{program_name()} {' '.join(command)} ended with {ended.returncode}")
        taken.append(time.monotonic() - began)
    return round(median(taken[1:]), 3)
