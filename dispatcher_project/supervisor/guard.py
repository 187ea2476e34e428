"""Ends what a killed supervisor leaves behind. Runs as a script of its own: standard library, no package.

PR_SET_PDEATHSIG ends the children of a supervisor that gets SIGKILL; their own children it does not reach,
and outside Linux nobody. The guard holds the other end of a pipe from the supervisor. When that closes, in
whatever way the supervisor ended, it kills the process groups it was told of and, on Linux, every process
that carries the run's marker in its environment, until there is none.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

MARKER_VARIABLE = "GPU_DISPATCHER_UP_RUN"
"""Processes that hold models carry it too; they do not get to see what begins with DISPATCHER_
(gpu_host/local/process.py)."""
_ROUNDS = 50
_PAUSE_SECONDS = 0.05


def main(marker: str, *files: str) -> None:
    """Reads ``+<group>`` and ``-<group>`` lines until the supervisor is gone. files: removed then."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it outlives the supervisor, by a moment
    groups: set[int] = set()
    for line in sys.stdin:
        if line[0] == "+":
            groups.add(int(line[1:]))
        else:
            groups.discard(int(line[1:]))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    kill_marked(marker)
    for file in files:
        with contextlib.suppress(OSError):
            os.unlink(file)


def kill_marked(marker: str) -> None:
    """SIGKILL to every process whose marker begins with `marker`, repeated until none is left (Linux)."""
    for _ in range(_ROUNDS):
        found = marked_processes(marker)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)


def marked_processes(marker: str) -> list[int]:
    """The processes, this one aside, that carry the marker. Empty where there is no /proc."""
    wanted = f"{MARKER_VARIABLE}={marker}".encode()
    found = []
    with contextlib.suppress(OSError):
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                if any(variable.startswith(wanted) for variable in file.read().split(b"\0")):
                    found.append(int(entry))
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
