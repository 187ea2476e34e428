"""Processes started by the trial. Each one dies with it; `close` ends all.

Start them from the main thread only: a child gets SIGKILL when the *thread* that forked it ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import die_with_parent

_ANSWER_SECONDS = 30.0
_STOP_SECONDS = 10.0


class NoReply(Exception):
    """A child did not answer, or exited."""


class Child:
    """A child process. talks: it answers each line on stdin with one line of JSON on stdout. folder: of its
    code."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        talks: bool,
        folder: Path = ROOT,
    ) -> None:
        self.name, self.answer_seconds = name, _ANSWER_SECONDS
        self._lock = threading.Lock()
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**environment, "DISPATCHER_NO_BOOTSTRAP": "1", "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else output,
                stderr=output,
                preexec_fn=die_with_parent,  # noqa: PLW1509  (it calls one preloaded C function)
                start_new_session=True,  # Ctrl-C must reach only the trial, which stops its children in order
                bufsize=0,
            )
        self._heard = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_running(self) -> bool:
        return self.process.poll() is None

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send an order and return the answer. Raises NoReply."""
        with self._lock:
            assert self.process.stdin is not None
            try:
                self.process.stdin.write(json.dumps(order).encode() + b"\n")
            except OSError as error:
                raise NoReply(f"{self.name} is gone") from error
            return self._receive()

    def receive(self) -> dict[str, Any]:
        """Return the next unsolicited message, such as that it is ready. Raises NoReply."""
        with self._lock:
            return self._receive()

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.pid, number)

    def stop(self, seconds: float = _STOP_SECONDS, *, by: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal; kill the process if it does not exit within `seconds`."""
        if self.is_running():
            self.send(signal.SIGCONT)
            self.send(by)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """Kill the process and its process group."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self.process.stdout], [], [], self.answer_seconds)
            piece = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not piece:
                raise NoReply(f"{self.name} {'ended' if ready else 'does not answer'}")
            self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        return dict(json.loads(line))


class Children:
    """All children of the trial."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        """environment: variables for every child, besides its own."""
        self.logs, self.environment = logs, dict(environment)
        self._children: list[Child] = []
        logs.mkdir(parents=True, exist_ok=True)

    def start(
        self,
        name: str,
        *command: str,
        talks: bool = False,
        environment: Mapping[str, str] | None = None,
        folder: Path = ROOT,
    ) -> Child:
        """Start a process and return it."""
        child = Child(
            name,
            command,
            log=self.logs / f"{name}.log",
            environment={**self.environment, **(environment or {})},
            talks=talks,
            folder=folder,
        )
        self._children.append(child)
        return child

    def pids(self) -> dict[str, int]:
        """Return the pids of running children, by name."""
        return {child.name: child.pid for child in self._children if child.is_running()}

    def close(self) -> None:
        """Stop all, the latest first."""
        while self._children:
            self._children.pop().stop()
