"""One child: its process, its output, and the steps of its life."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from enum import Enum
from pathlib import Path

from dispatcher_project.embedded import die_with_parent

from .log_file import LogFile
from .notify import ALIVE, READY, NotifySocket
from .spec import ChildSpec
from .terminal import Terminal

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_STEADY_SECONDS = 60.0
_LONGEST_LINE = 64_000


class Phase(Enum):
    IDLE = "not started"
    STARTING = "starting"
    READY = "ready"
    PAUSING = "waits for its restart"
    STOPPING = "stopping"
    ENDED = "ended"


class Child:
    """Moves by `start`, `stop`, `kill` and, as time passes, `step(now)`; `now` is monotonic, in seconds.

    What it says (output, notify socket) is registered in `selector`; the entry's data is to be called.

    A child that ends unasked is started again after a pause of 1 s, doubling to 30 s; a minute of steady life
    makes it 1 s again. A step of the start is not repeated.
    """

    def __init__(
        self,
        spec: ChildSpec,
        *,
        folder: Path,
        log: LogFile,
        terminal: Terminal,
        selector: selectors.BaseSelector,
    ) -> None:
        self.spec = spec
        self.log = log
        self.phase = Phase.IDLE
        self.failures = 0
        self.exit_code: int | None = None
        self._terminal = terminal
        self._selector = selector
        self._notify = NotifySocket(folder / f"{spec.name}.notify")
        self._selector.register(self._notify, selectors.EVENT_READ, self._hear)
        self._process: subprocess.Popen[bytes] | None = None
        self._output: int | None = None
        self._partial_line = b""
        self._due = 0.0
        self._since = 0.0
        self._heard = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_settled(self) -> bool:
        """Nothing about it needs a look every few milliseconds."""
        return self.phase in (Phase.READY, Phase.ENDED, Phase.IDLE)

    def start(self, now: float) -> None:
        self._notify.read()  # what its forerunner said
        self._process = subprocess.Popen(
            self.spec.command,
            env={**self.spec.environment, "NOTIFY_SOCKET": str(self._notify.path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,  # noqa: PLW1509  (this process has one thread)
            start_new_session=True,
            pass_fds=self.spec.inherits,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._selector.register(self._output, selectors.EVENT_READ, self._take_output)
        self.phase = Phase.STARTING
        self._since = self._heard = now
        self._due = now + self.spec.ready_seconds

    def stop(self, now: float) -> None:
        """Asks it to end; `step` sends SIGKILL when its time is up."""
        if self.phase is Phase.STOPPING:
            return
        if self._process is None:
            self.phase = Phase.ENDED
            return
        self.phase = Phase.STOPPING
        self._due = now + self.spec.stop_seconds
        self._process.send_signal(self.spec.stop_signal)

    def kill(self) -> None:
        """SIGKILL to it and to whatever it started in its process group."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def step(self, now: float) -> None:
        """What time or its process brought about."""
        if self._process is not None and self._process.poll() is not None:
            self._has_ended(now)
        elif self.phase is Phase.STARTING:
            self._look_for_readiness(now)
        elif self.phase is Phase.READY:
            silent = self.spec.silent_after_seconds
            if silent is not None and now - self._heard > silent:
                self._terminal.say(self.spec.name, f"silent for {silent:.0f} s: restarting it")
                self._heard = now
                self.kill()
        elif self.phase is Phase.STOPPING and now > self._due:
            self._terminal.say(self.spec.name, f"did not stop in {self.spec.stop_seconds:.0f} s: killing it")
            self._due = now + self.spec.stop_seconds
            self.kill()
        elif self.phase is Phase.PAUSING and now > self._due:
            self.start(now)

    def close(self) -> None:
        self._close_output()
        self._selector.unregister(self._notify)
        self._notify.close()
        self.log.close()

    def _hear(self) -> None:
        messages = self._notify.read()
        now = time.monotonic()
        if messages & {READY, ALIVE}:
            self._heard = now
        if READY in messages and self.spec.ready is None and self.phase is Phase.STARTING:
            self._is_ready(now)

    def _take_output(self) -> bool:
        """Moves a piece of what it wrote to its log and the terminal. False: there is no more now."""
        if self._output is None:
            return False
        try:
            data = os.read(self._output, 65_536)
        except BlockingIOError:
            return False
        if not data:  # its last writer is gone
            self._close_output()
            return False
        self.log.write(data)
        *lines, rest = (self._partial_line + data).split(b"\n")
        self._partial_line = rest[-_LONGEST_LINE:]
        for line in lines:
            self._terminal.child_said(self.spec.name, line.decode(errors="replace").rstrip())
        return True

    def _close_output(self) -> None:
        if self._output is not None and self._process is not None and self._process.stdout is not None:
            self._selector.unregister(self._output)
            self._output = None
            self._process.stdout.close()

    def _look_for_readiness(self, now: float) -> None:
        if self.spec.ready is not None and self.spec.ready():
            self._is_ready(now)
        elif now > self._due:
            self._terminal.say(self.spec.name, f"not ready after {self.spec.ready_seconds:.0f} s: killing it")
            self._due = now + self.spec.ready_seconds
            self.kill()

    def _is_ready(self, now: float) -> None:
        self.phase = Phase.READY
        self._terminal.say(self.spec.name, f"ready after {now - self._since:.1f} s (pid {self.pid})")

    def _has_ended(self, now: float) -> None:
        assert self._process is not None
        self.kill()  # its own children must not meet those of its successor
        while self._take_output():
            pass
        self._close_output()
        self.exit_code = self._process.returncode
        self._process = None
        if self.phase is Phase.STOPPING:
            self.phase = Phase.ENDED
            self._terminal.say(self.spec.name, "stopped")
        elif self.spec.step:
            self.phase = Phase.ENDED
            self.failures += self.exit_code != 0
        else:
            self._pause(now)

    def _pause(self, now: float) -> None:
        steady = self.phase is Phase.READY and now - self._since > _STEADY_SECONDS
        self.failures = 1 if steady else self.failures + 1
        pause = min(_FIRST_PAUSE_SECONDS * 2 ** (self.failures - 1), _LONGEST_PAUSE_SECONDS)
        self.phase = Phase.PAUSING
        self._due = now + pause
        self._terminal.say(
            self.spec.name, f"ended ({how_it_ended(self.exit_code)}); next start in {pause:.0f} s"
        )


def how_it_ended(exit_code: int | None) -> str:
    """``exit code 1`` or ``SIGKILL``"""
    if exit_code is not None and exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"exit code {exit_code}"
