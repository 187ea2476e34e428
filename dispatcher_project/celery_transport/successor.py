"""The next process of a worker, started by the worker itself: `systemctl reload` sends SIGHUP.

The next process runs the same command with the code that is installed now. Once it takes jobs, systemd is
told its pid (``MAINPID=``), and the old process drains. If it does not come up, the old one goes on serving.
Under `up` the supervisor starts the next process instead (supervisor/child.py).
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable

import structlog

from dispatcher_project.supervisor.guard import MARKER_VARIABLE
from dispatcher_project.supervisor.notify import READY, notify

log = structlog.get_logger(__name__)

PIPE_VARIABLE = "DISPATCHER_PREDECESSOR_PIPE"
READY_SECONDS = 120.0
"""The next process has so long to take jobs; then it is ended, and the old one stays."""
_LOOK_SECONDS = 0.1
_NOTIFY_SECONDS = 5.0


def can_have_successor() -> bool:
    """Only where a service manager follows the pid that it is told; `up` starts the next process itself."""
    return "NOTIFY_SOCKET" in os.environ and MARKER_VARIABLE not in os.environ


class Predecessor:
    """The process that started this one, if there is one; it waits to be told that this one takes jobs."""

    def __init__(self) -> None:
        given = os.environ.pop(PIPE_VARIABLE, "")
        self._pipe = int(given) if given.isdecimal() else None

    def __bool__(self) -> bool:
        return self._pipe is not None

    def tell_ready(self) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                os.write(self._pipe, b"r")
                os.close(self._pipe)
            self._pipe = None


def start_successor(is_stopped: Callable[[], bool], *, ready_seconds: float = READY_SECONDS) -> bool:
    """Return True once the next process takes jobs and the service manager knows its pid.

    is_stopped: asked while it starts; True ends it again.
    """
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        process = subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]],
            env={**os.environ, PIPE_VARIABLE: str(writer)},
            pass_fds=(writer,),
        )
    except OSError as error:
        log.error("successor_not_started", error=str(error))
        os.close(reader)
        return False
    finally:
        os.close(writer)
    log.info("successor_started", pid=process.pid)
    try:
        if _is_ready(reader, time.monotonic() + ready_seconds, is_stopped) and notify(
            f"MAINPID={process.pid}\n{READY}", seconds=_NOTIFY_SECONDS
        ):
            return True
    finally:
        os.close(reader)
    process.kill()
    process.wait()
    log.error("successor_not_ready", pid=process.pid, exit_code=process.returncode)
    return False


def _is_ready(reader: int, until: float, is_stopped: Callable[[], bool]) -> bool:
    while time.monotonic() < until and not is_stopped():
        if select.select([reader], [], [], _LOOK_SECONDS)[0]:
            return os.read(reader, 1) == b"r"  # empty: it ended
    return False
