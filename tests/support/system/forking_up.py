"""`manage.py up` whose children are forked from its own process (forking.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from dispatcher_project.supervisor import child, up
from tests.support.system.forking import ForkedProcess

PAUSE_SECONDS = 0.1
"""Before a restart, however often a scenario has killed the child."""


def start(command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> Any:
    """In place of `subprocess.Popen`: what is no Python program of ours is started as one."""
    if command[0] != sys.executable:
        return subprocess.Popen(command, env=env, **options)
    reader, writer = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = open(reader, "rb", buffering=0)  # noqa: SIM115
    try:
        return ForkedProcess(
            command,
            env=env,
            streams=(nothing, writer, writer),
            pass_fds=options["pass_fds"],
            stdout=output,
        )
    finally:
        os.close(writer)
        os.close(nothing)


def main() -> int:
    child.subprocess = SimpleNamespace(  # type: ignore[attr-defined]
        Popen=start, DEVNULL=subprocess.DEVNULL, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT
    )
    child._FIRST_PAUSE_SECONDS = child._LONGEST_PAUSE_SECONDS = PAUSE_SECONDS
    return up.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
