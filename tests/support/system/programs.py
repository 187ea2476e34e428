"""Programs beside a running system, forked by its `up` (forking_up.py) instead of started by this process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import tempfile
from collections.abc import Mapping, Sequence

DOOR_VARIABLE = "FORKING_UP_SOCKET"
"""Environment variable of `up` with the path of the unix socket where it takes what to start."""
LENGTH = struct.Struct("=i")
"""Of a request, which is JSON; a pid and an exit status are sent alike."""


class Program:
    """A process, as `subprocess.Popen` has it. outputs: file descriptors of its standard output and error."""

    def __init__(
        self, door: str, command: Sequence[str], environment: Mapping[str, str], *, outputs: Sequence[int]
    ) -> None:
        self._command = command
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(door)
        asked = json.dumps({"command": command, "environment": dict(environment)}).encode()
        socket.send_fds(self._connection, [LENGTH.pack(len(asked))], outputs)
        self._connection.sendall(asked)
        self.pid = self._read_number()
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(TimeoutError):
            return self.wait(0.0)
        return None

    def wait(self, seconds: float | None = None) -> int:
        """Return its exit status. Raises TimeoutError."""
        if self._exit_code is None:
            self._connection.settimeout(seconds)
            try:
                self._exit_code = self._read_number()
            except BlockingIOError:
                raise TimeoutError(f"{self._command} runs on after {seconds} s") from None
            self._connection.close()
        return self._exit_code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_number(self) -> int:
        """-SIGKILL where `up` is gone: its programs die with it."""
        data = self._connection.recv(LENGTH.size)
        return int(LENGTH.unpack(data)[0]) if data else -int(signal.SIGKILL)


def output_of(door: str, command: Sequence[str], environment: Mapping[str, str], *, check: bool) -> str:
    """What the program writes to its standard output, once it has ended."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        status = Program(door, command, environment, outputs=(out.fileno(), errors.fileno())).wait(60)
        for file in (out, errors):
            file.seek(0)
        assert not (check and status), errors.read().decode()
        return out.read().decode()
