"""Kills the processes that a killed supervisor leaves behind. Runs as a separate script: standard library
only.

PR_SET_PDEATHSIG ends the children of a supervisor that gets SIGKILL, but not their children, and it exists
only on Linux. The guard reads a pipe from the supervisor. When that closes, however the supervisor ended, it
kills the process groups whose numbers it has read and, on Linux, all processes with the run's marker in their
environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

MARKER_VARIABLE = "GPU_DISPATCHER_UP_RUN"
"""Environment variable with a run's marker. Its name does not begin with DISPATCHER_, because model
processes, which need the marker too, don't get those variables (gpu_host/local/process.py)."""
_ROUNDS = 50
_PAUSE_SECONDS = 0.05


def main(marker: str, *files: str) -> None:
    """Read ``+<group>`` and ``-<group>`` lines until the supervisor has ended; then kill and clean up.

    marker: of the run. files: removed at the end.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it must outlive the supervisor
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
    """Send SIGKILL to all processes whose marker begins with `marker`, until none is left (Linux)."""
    for _ in range(_ROUNDS):
        found = marked_processes(marker)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)


def marked_processes(marker: str) -> list[int]:
    """Return the pids of other processes with the marker; empty without /proc."""
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
