"""One process of a child: its output and its notify socket. While one drains there is a second."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from dispatcher_project.supervisor.embedded import die_with_parent

from .notify import NotifySocket
from .spec import ChildSpec

_LONGEST_LINE = 64_000


class ChildProcess:
    """Started when it is made. on_line: called with each line it writes; on_output: with the raw bytes;
    on_messages: with what it sends to its notify socket."""

    def __init__(
        self,
        spec: ChildSpec,
        notify_path: Path,
        *,
        selector: selectors.BaseSelector,
        on_output: Callable[[bytes], None],
        on_line: Callable[[str], None],
        on_messages: Callable[[ChildProcess, set[str]], None],
    ) -> None:
        self._selector = selector
        self._on_output, self._on_line, self._on_messages = on_output, on_line, on_messages
        self._partial_line = b""
        self._notify = NotifySocket(notify_path)
        self.kill_at = 0.0
        """When a process that was asked to stop gets SIGKILL."""
        try:
            self._process = subprocess.Popen(
                spec.command,
                env={**spec.environment, "NOTIFY_SOCKET": str(notify_path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,  # noqa: PLW1509  (this process has one thread)
                start_new_session=True,
                pass_fds=spec.inherits,
            )
        except BaseException:
            self._notify.close()
            raise
        assert self._process.stdout is not None
        self._output: int | None = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        selector.register(self._output, selectors.EVENT_READ, self.take_output)
        selector.register(self._notify, selectors.EVENT_READ, self._read_messages)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to it and to whatever it started in its process group."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def take_output(self) -> bool:
        """Passes on a piece of what it wrote. False: there is no more now."""
        if self._output is None:
            return False
        try:
            data = os.read(self._output, 65_536)
        except BlockingIOError:
            return False
        if not data:  # its last writer is gone
            self._close_output()
            return False
        self._on_output(data)
        *lines, rest = (self._partial_line + data).split(b"\n")
        self._partial_line = rest[-_LONGEST_LINE:]
        for line in lines:
            self._on_line(line.decode(errors="replace").rstrip())
        return True

    def close(self) -> None:
        """After its end: what it wrote last, and its descriptors."""
        self.kill()  # its own children must not meet those of its successor
        while self.take_output():
            pass
        self._close_output()
        self._selector.unregister(self._notify)
        self._notify.close()

    def _read_messages(self) -> None:
        self._on_messages(self, self._notify.read())

    def _close_output(self) -> None:
        if self._output is not None and self._process.stdout is not None:
            self._selector.unregister(self._output)
            self._output = None
            self._process.stdout.close()
