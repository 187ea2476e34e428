"""Programs of this repository that a fork server starts (fork_server.py), as `subprocess` starts others."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dispatcher_project.supervisor.embedded import die_with_parent
from foundation.program import ROOT
from verification.proving.clocks import Clocks

SOCKET_VARIABLE = "FORK_SERVER_SOCKET"
"""Environment variable of the tests' processes with the path of the fork server's unix socket."""
LENGTH = struct.Struct("=i")
"""Of a request, which is JSON; a pid and an exit status are sent alike."""
_BACKLOG = 64
_END_SECONDS = 10.0


@contextlib.contextmanager
def fork_server() -> Iterator[None]:
    """One for this process and those that it forks. It imports when the first program is asked for."""
    with tempfile.TemporaryDirectory(prefix="fork-") as folder:
        socket_path = f"{folder}/socket"
        shim = Clocks(Path(folder, "clocks"), ()).environment.get("LD_PRELOAD")
        with socket.create_server(socket_path, family=socket.AF_UNIX, backlog=_BACKLOG) as listener:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.system.fork_server", str(listener.fileno())],
                cwd=ROOT,
                env={**os.environ, **({"LD_PRELOAD": shim} if shim else {})},
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                preexec_fn=die_with_parent,  # noqa: PLW1509  (only this thread forks)
            )
        os.environ[SOCKET_VARIABLE] = socket_path
        try:
            yield
        finally:
            del os.environ[SOCKET_VARIABLE]
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_END_SECONDS)
            finally:
                process.kill()
                process.wait()


class Program:
    """A process, as `subprocess.Popen` has it. It ends with the process that made this object.

    command: `python manage.py …` or `python -m …`. outputs: file descriptors of its standard output and
    error. folder: its current directory."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        outputs: Sequence[int],
        folder: Path = ROOT,
    ) -> None:
        self._command = command
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(os.environ[SOCKET_VARIABLE])
        asked = {"command": command, "environment": dict(environment), "folder": str(folder)}
        data = json.dumps(asked).encode()
        with open(os.devnull, "rb") as nothing:
            socket.send_fds(self._connection, [LENGTH.pack(len(data))], [nothing.fileno(), *outputs])
        self._connection.sendall(data)
        self.pid = self._read_number()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(TimeoutError):
            return self.wait(0.0)
        return None

    def wait(self, seconds: float | None = None) -> int:
        """Return its exit status. Raises TimeoutError."""
        if self.returncode is None:
            self._connection.settimeout(seconds)
            try:
                self.returncode = self._read_number()
            except BlockingIOError:
                raise TimeoutError(f"{self._command} runs on after {seconds} s") from None
            self._connection.close()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_number(self) -> int:
        """-SIGKILL where the server is gone: its programs die with it."""
        data = self._connection.recv(LENGTH.size)
        return int(LENGTH.unpack(data)[0]) if data else -int(signal.SIGKILL)


def output_of(command: Sequence[str], environment: Mapping[str, str], *, check: bool) -> str:
    """What the program writes to its standard output, once it has ended."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        status = Program(command, environment, outputs=(out.fileno(), errors.fileno())).wait(60)
        for file in (out, errors):
            file.seek(0)
        assert not (check and status), errors.read().decode()
        return out.read().decode()
