"""Finds a faster build of the running Python. Standard library only.

The same version of Python takes 1.5 times the CPU if it was compiled without profile-guided optimization, as
pyenv does by default. Not every build says how it was compiled, so the builds are measured (docs/adr/0053).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MIN_GAIN = 1.2
"""Another build is chosen if the running one takes so many times its CPU."""
_PROBE_SECONDS = 10.0
_PROBE = """
import json, sys, time, sqlite3, ssl, venv

class Number:
    def __init__(self, value):
        self.value = value
    def next(self):
        return Number(self.value + 1)

def measured():
    began, number, texts = time.process_time(), Number(0), {}
    for index in range(20_000):
        number = number.next()
        texts[index % 100] = f"{index} {number.value}"
    return time.process_time() - began

build = [sys.implementation.name, *sys.version_info[:2], sys.prefix == sys.base_prefix]
print(json.dumps({"build": build, "path": sys.executable, "seconds": min(measured() for _ in range(25))}))
"""


class Build(NamedTuple):
    """A Python on this machine. seconds: CPU time of the probe."""

    path: str
    seconds: float


def faster_python() -> Build | None:
    """Return a faster build of the running Python; None if there is none."""
    running = _measured(getattr(sys, "_base_executable", sys.executable))
    return None if running is None else faster_than(running)


def faster_than(running: Build) -> Build | None:
    """Return the fastest Python of this minor version on PATH if its gain over `running` counts."""
    builds = [build for path in _on_path() if (build := _measured(path)) is not None]
    fastest = min(builds, key=lambda build: build.seconds, default=running)
    return fastest if running.seconds >= fastest.seconds * MIN_GAIN else None


def _on_path() -> list[str]:
    """Return each `python3.N` once. Not `python3`: on a macOS without developer tools it opens a window."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    found = (Path(folder, name) for folder in os.get_exec_path() if os.path.isabs(folder))
    return list({path.resolve(): str(path) for path in found if os.access(path, os.X_OK)}.values())


def _measured(path: str) -> Build | None:
    """Return None for another version, for the interpreter of a virtual environment, and after an error."""
    with suppress(OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
        answer = subprocess.run(
            [path, "-I", "-c", _PROBE], check=True, capture_output=True, timeout=_PROBE_SECONDS
        )
        found = json.loads(answer.stdout)
        if found["build"] == [sys.implementation.name, *sys.version_info[:2], True]:
            return Build(str(found["path"]), float(found["seconds"]))
    return None
