"""The parent of a model process, which ends with everything that it started, and with the worker.

A worker killed by SIGKILL can't clean up, PR_SET_PDEATHSIG reaches a child but not what the child forked, and
a process that called setsid is in no group that could be killed. So a process of a few kilobytes sits between
the two: it holds a lifeline pipe from the worker, is the subreaper (Linux) of all descendants, and loads no
model. It keeps the worker's user; the model process may have another, and is confined.

A script of its own (``python -I -S warden.py PIPE LIFELINE CONFINEMENT COMMAND…``): as root it must not
import from folders of models.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
SIGNALLED = 128
"""An exit status above this is 128 plus the number of the signal that ended the process."""


def main() -> NoReturn:
    """Fork: the child becomes the model process and dies with this one."""
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
    from gpu_host.local import limits

    pipe, lifeline, text, *command = sys.argv[1:]
    confinement = json.loads(text)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(int(lifeline))
            limits.enter(confinement)
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # must follow the change of user, which clears it
            if os.getppid() == parent:  # otherwise the parent has exited meanwhile
                os.execv(command[0], command)
        except BaseException as error:
            sys.stderr.write(f"the model process can't be started: {error}\n")
            sys.stderr.flush()
        os._exit(1)
    os.close(int(pipe))
    limits.hide_process()
    _watch(pid, int(lifeline))


def _watch(pid: int, lifeline: int) -> NoReturn:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it exits only with the worker or the model process
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # model code of the same user can stop this process with SIGSTOP; the worker's end resumes it
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)
    ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    status = _reap(pid)
    while status is None:
        ready, _, _ = select.select([lifeline, ended], [], [])
        if lifeline in ready:
            break
        os.read(ended, 4096)
        status = _reap(pid)
    _kill_descendants()
    os._exit(SIGNALLED + signal.SIGKILL if status is None else status)


def _reap(pid: int) -> int | None:
    """Reap all children that ended; return the exit status of the model process, or None while it runs."""
    while True:
        try:
            found, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0
        if found == 0:
            return None
        if found == pid:
            return SIGNALLED + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _kill_descendants() -> None:
    """Kill all descendants: orphans become children of this process, so repeat until there are none."""
    while True:
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    try:
        return [pid for task in os.listdir("/proc/self/task") for pid in _children_of(task)]
    except OSError:  # no /proc: only the process group is left, and this process is in it
        os.killpg(0, signal.SIGKILL)
        return []


def _children_of(task: str) -> list[int]:
    with open(f"/proc/self/task/{task}/children") as file:
        return [int(pid) for pid in file.read().split()]


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
