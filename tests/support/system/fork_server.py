"""Forks programs for a run of tests: `python -m tests.support.system.fork_server N`.

N is the file descriptor of a unix socket that listens. A request is JSON with its length before it, and the
three standard streams; the answers are the process's id, and its exit status once it has ended. A connection
that closes before ends its process. The server ends at the end of its standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
from pathlib import Path

from tests.support.system.forking import ForkedProcess
from tests.support.system.programs import LENGTH


class ForkServer:
    def __init__(self, listener: socket.socket) -> None:
        self._programs: dict[ForkedProcess, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._ended, wakes = socket.socketpair()
        for end in (self._ended, wakes):
            end.setblocking(False)
        self._wakes = wakes
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the tests' process ends it, after its own programs
        self._selector.register(self._listener, selectors.EVENT_READ, self._start)
        self._selector.register(self._ended, selectors.EVENT_READ, self._take_ends)
        self._selector.register(sys.stdin, selectors.EVENT_READ)

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    for process in self._programs:
                        _kill(process)
                    return
                key.data()

    def _start(self) -> None:
        connection, _ = self._listener.accept()
        head, streams, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
        if not head:
            connection.close()
            return
        asked = json.loads(connection.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL))
        process = ForkedProcess(
            asked["command"],
            env=asked["environment"],
            streams=(streams[0], streams[1], streams[2]),
            folder=Path(asked["folder"]),
        )
        for stream in streams:
            os.close(stream)
        self._programs[process] = connection
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._leave(process))
        with contextlib.suppress(OSError):
            connection.sendall(LENGTH.pack(process.pid))

    def _leave(self, process: ForkedProcess) -> None:
        """End a program whose caller has closed the connection."""
        self._selector.unregister(self._programs[process])
        _kill(process)

    def _take_ends(self) -> None:
        while True:
            with contextlib.suppress(BlockingIOError):
                if self._ended.recv(4096):
                    continue
            break
        for process in list(self._programs):
            if (code := process.poll()) is not None:
                with self._programs.pop(process) as connection:
                    with contextlib.suppress(KeyError):  # unregistered when its caller closed the connection
                        self._selector.unregister(connection)
                    with contextlib.suppress(OSError):
                        connection.sendall(LENGTH.pack(code))


def _kill(process: ForkedProcess) -> None:
    """With what it has started in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    ForkServer(socket.socket(fileno=int(sys.argv[1]))).run()
