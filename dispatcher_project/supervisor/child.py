"""One child process: its specification, its output, and its life cycle with restarts.

`Plan` has the order in which the children start and stop."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from dispatcher_project.supervisor.embedded import die_with_parent

from .notify import ALIVE, READY, STOPPING, NotifySocket
from .output import LogFile, Terminal


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """Specification of a child.

    ready: polled every few milliseconds until it returns True; None waits for ``READY=1`` on NOTIFY_SOCKET.
    step: True for a step of the start instead of a service: ready once it has exited with 0.
    silent_after_seconds: without a ``WATCHDOG=1`` for this time it is restarted.
    stop_seconds: time from the stop signal to SIGKILL.
    overlaps: after its ``STOPPING=1`` the next process is started at once, while it drains.
    inherits: our file descriptors that stay open in it, under the same numbers.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], bool] | None = None
    ready_seconds: float = 60.0
    step: bool = False
    silent_after_seconds: float | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 10.0
    overlaps: bool = False
    inherits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The order of starts and stops.

    start: stages; each begins once all children of the previous one are ready. stop: stages of names.
    """

    start: tuple[tuple[ChildSpec, ...], ...]
    stop: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        started = sorted(spec.name for stage in self.start for spec in stage if not spec.step)
        stopped = sorted(name for stage in self.stop for name in stage)
        if started != stopped:
            raise ValueError(f"started {started}, but stopped {stopped}")


_LONGEST_LINE = 64_000


class ChildProcess:
    """One process of a child, started by the constructor.

    on_line: called with each line of its output. on_output: called with the raw bytes. on_messages: called
    with the messages to its notify socket.
    """

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
        """When a draining process gets SIGKILL."""
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
        """The exit code; None while it runs."""
        return self._process.poll()

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL to its process group."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def take_output(self) -> bool:
        """Read and pass on a part of its output; return False if there is no more now."""
        if self._output is None:
            return False
        try:
            data = os.read(self._output, 65_536)
        except BlockingIOError:
            return False
        if not data:  # end of file: no writer is left
            self._close_output()
            return False
        self._on_output(data)
        *lines, rest = (self._partial_line + data).split(b"\n")
        self._partial_line = rest[-_LONGEST_LINE:]
        for line in lines:
            self._on_line(line.decode(errors="replace").rstrip())
        return True

    def close(self) -> None:
        """After its end: read the rest of its output and close its descriptors."""
        self.kill()  # its own children must not overlap with those of its successor
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


_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0
_STEADY_SECONDS = 60.0
_SHORT_LIFE_SECONDS = 5.0
_MAX_DRAINING = 2
"""Draining processes of one child beside the serving one; another start waits until one of them has ended."""


class Phase(Enum):
    """Where a child is in its life cycle."""

    IDLE = "not started"
    STARTING = "starting"
    READY = "ready"
    PAUSING = "waits for its restart"
    STOPPING = "stopping"
    ENDED = "ended"


class Child:
    """A supervised child, driven by `start`, `stop`, `kill` and regular calls of `step(now)`.

    now: monotonic time in seconds. selector: gets its output and notify socket; the data of an entry is a
    function to call when it is readable.

    A child that ends by itself is restarted after a pause of 1 s, which doubles up to 30 s and is reset after
    a minute of uptime. A step of the start is not repeated. A child with `overlaps` that reports
    ``STOPPING=1`` drains while its next process starts.
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
        self._folder = folder
        self._terminal = terminal
        self._selector = selector
        self._process: ChildProcess | None = None
        self._draining: list[ChildProcess] = []
        self._starts = 0
        self._due = 0.0
        """When the current phase ends: readiness or stop times out, or the restart pause is over."""
        self._since = 0.0
        """When the current process was started."""
        self._last_message_at = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def pids(self) -> list[int]:
        """The pids of all its processes, also of the draining ones."""
        return [process.pid for process in (*self._draining, *([self._process] if self._process else []))]

    @property
    def is_settled(self) -> bool:
        """True if it needs no step every few milliseconds."""
        return self.phase in (Phase.READY, Phase.ENDED, Phase.IDLE)

    def start(self, now: float) -> None:
        self._starts += 1
        self._process = ChildProcess(
            self.spec,
            self._folder / f"{self.spec.name}.{self._starts % 100}",
            selector=self._selector,
            on_output=self.log.write,
            on_line=lambda line: self._terminal.child_line(self.spec.name, line),
            on_messages=self._on_messages,
        )
        self.phase = Phase.STARTING
        self._since = self._last_message_at = now
        self._due = now + self.spec.ready_seconds

    def stop(self, now: float) -> None:
        """Send the stop signal; `step` sends SIGKILL after `stop_seconds`."""
        if self.phase is Phase.STOPPING:
            return
        for process in self._draining:  # signalled before: at most as much time as the others from now on
            process.kill_at = min(process.kill_at, now + self.spec.stop_seconds)
        if self._process is None:
            self.phase = Phase.STOPPING if self._draining else Phase.ENDED
            return
        self.phase = Phase.STOPPING
        self._due = now + self.spec.stop_seconds
        self._process.send_signal(self.spec.stop_signal)

    def kill(self) -> None:
        """Send SIGKILL to the process groups of all its processes."""
        for process in self._draining:
            process.kill()
        if self._process is not None:
            self._process.kill()

    def step(self, now: float) -> None:
        """Handle exits, time-outs and due restarts."""
        self._step_draining(now)
        if self._process is not None and self._process.exit_code is not None:
            self._has_ended(now)
        elif self.phase is Phase.STARTING:
            self._check_ready(now)
        elif self.phase is Phase.READY:
            silent = self.spec.silent_after_seconds
            if silent is not None and now - self._last_message_at > silent:
                self._terminal.say(self.spec.name, f"silent for {silent:.0f} s: restarting it")
                self._last_message_at = now
                if self._process is not None:
                    self._process.kill()
        elif self.phase is Phase.STOPPING and self._process is None:
            if not self._draining:
                self._is_stopped()
        elif self.phase is Phase.STOPPING and now > self._due:
            self._terminal.say(self.spec.name, f"did not stop in {self.spec.stop_seconds:.0f} s: killing it")
            self._due = now + self.spec.stop_seconds
            self.kill()
        elif self.phase is Phase.PAUSING and now > self._due and len(self._draining) <= _MAX_DRAINING:
            self._start_again(now)

    def _start_again(self, now: float) -> None:
        try:
            self.start(now)
        except OSError as error:  # such as a full disk
            self._terminal.say(self.spec.name, f"cannot start: {error}")
            self._pause(now)

    def close(self) -> None:
        for process in (*self._draining, *([self._process] if self._process else [])):
            process.close()
        self.log.close()

    def _on_messages(self, process: ChildProcess, messages: set[str]) -> None:
        if process is not self._process:
            return
        now = time.monotonic()
        if messages & {READY, ALIVE}:
            self._last_message_at = now
        if READY in messages and self.spec.ready is None and self.phase is Phase.STARTING:
            self._is_ready(now)
        if STOPPING in messages and self.spec.overlaps and self.phase is Phase.READY:
            self._drain_beside_the_next(process, now)

    def _drain_beside_the_next(self, process: ChildProcess, now: float) -> None:
        process.kill_at = now + self.spec.stop_seconds
        self._draining.append(process)
        self._process = None
        soon = now - self._since < _SHORT_LIFE_SECONDS  # it stops right after its start: avoid a busy loop
        self.phase = Phase.PAUSING
        self._due = now + (_FIRST_PAUSE_SECONDS if soon else 0.0)
        self._terminal.say(self.spec.name, f"drains (pid {process.pid}); the next one starts")

    def _step_draining(self, now: float) -> None:
        for process in list(self._draining):
            if process.exit_code is not None:
                self._draining.remove(process)
                process.close()
                self._terminal.say(
                    self.spec.name, f"drained (pid {process.pid}, {how_it_ended(process.exit_code)})"
                )
            elif now > process.kill_at:
                self._terminal.say(
                    self.spec.name,
                    f"pid {process.pid} did not drain in {self.spec.stop_seconds:.0f} s: killing it",
                )
                process.kill_at = now + self.spec.stop_seconds
                process.kill()

    def _check_ready(self, now: float) -> None:
        if self.spec.ready is not None and self.spec.ready():
            self._is_ready(now)
        elif now > self._due:
            self._terminal.say(self.spec.name, f"not ready after {self.spec.ready_seconds:.0f} s: killing it")
            self._due = now + self.spec.ready_seconds
            if self._process is not None:
                self._process.kill()

    def _is_ready(self, now: float) -> None:
        self.phase = Phase.READY
        self._terminal.say(self.spec.name, f"ready after {now - self._since:.1f} s (pid {self.pid})")

    def _has_ended(self, now: float) -> None:
        assert self._process is not None
        self.exit_code = self._process.exit_code
        self._process.close()
        self._process = None
        if self.phase is Phase.STOPPING:
            if not self._draining:
                self._is_stopped()
        elif self.spec.step:
            self.phase = Phase.ENDED
            self.failures += self.exit_code != 0
        else:
            self._pause(now)

    def _is_stopped(self) -> None:
        self.phase = Phase.ENDED
        self._terminal.say(self.spec.name, "stopped")

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
    """Describe an exit code: ``exit code 1`` or ``SIGKILL``."""
    if exit_code is not None and exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"exit code {exit_code}"
