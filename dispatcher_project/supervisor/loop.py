"""The supervisor: starts the children of a plan in order, restarts them, and stops them in order."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from . import guard
from .child import Child, ChildSpec, Phase, Plan, how_it_ended
from .output import LogFile, Terminal

_BUSY_LOOK_SECONDS = 0.05
_QUIET_LOOK_SECONDS = 1.0
_TRIES_AT_START = 3
_SHOWN_LINES = 15


class StartFailed(Exception):
    """A child did not become ready; the message has the end of its log."""


class Supervisor:
    """Runs a plan until a stop signal.

    folder: for the run's sockets; its path must be short. marker: identifies the run's processes, see
    guard.py. on_pids: called with {name: pid} once all children are ready, and after every restart.
    temporary_files: files that are removed when the supervisor ends, however it ends.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        folder: Path,
        log_folder: Path,
        marker: str,
        terminal: Terminal,
        on_pids: Callable[[dict[str, int]], None],
        temporary_files: Sequence[Path] = (),
    ) -> None:
        self._plan = plan
        self._marker = marker
        self._terminal = terminal
        self._on_pids = on_pids
        self._temporary_files = tuple(map(str, temporary_files))
        self._selector = selectors.DefaultSelector()
        self._signals_seen = 0
        self._reported_pids: dict[str, int] | None = None
        self._guarded: set[int] = set()
        self._guard: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._children: dict[str, Child] = {
            spec.name: Child(
                spec,
                folder=folder,
                log=LogFile(log_folder / f"{spec.name}.log"),
                terminal=terminal,
                selector=self._selector,
            )
            for stage in plan.start
            for spec in stage
        }

    def run(self) -> None:
        """Run until SIGINT, SIGTERM or SIGHUP and the ordered stop after it. Raises StartFailed."""
        with self._handled_signals():
            try:
                self._keep_guard()
                for stage in self._plan.start:
                    self._start(stage)
                while not self._signals_seen:
                    self._turn()
                    self._report_pids()
            finally:
                self._stop_everything()

    def _start(self, stage: tuple[ChildSpec, ...]) -> None:
        children = [self._children[spec.name] for spec in stage]
        for child in children:
            child.start(time.monotonic())
        while not self._signals_seen:
            self._turn()
            for child in children:
                if child.failures >= (1 if child.spec.step else _TRIES_AT_START):
                    raise StartFailed(_why(child))
            if all(child.phase is Phase.READY or _is_done(child) for child in children):
                return

    def _turn(self) -> None:
        """Wait shortly for events, handle them, and step all children."""
        settled = all(child.is_settled for child in self._children.values())
        for key, _ in self._selector.select(_QUIET_LOOK_SECONDS if settled else _BUSY_LOOK_SECONDS):
            key.data()
        for child in self._children.values():
            child.step(time.monotonic())
        self._keep_guard()

    def _stop_everything(self) -> None:
        if self._signals_seen:
            self._terminal.say("up", "stopping; press Ctrl-C again to stop at once")
        for child in self._children.values():
            if child.spec.step:
                child.kill()
        for stage in self._plan.stop:
            children = [self._children[name] for name in stage]
            for child in children:
                child.stop(time.monotonic())
            while any(child.phase is not Phase.ENDED for child in children):
                self._turn()
                if self._signals_seen > 1:  # second signal: stop at once
                    for child in self._children.values():
                        child.stop(time.monotonic())
                        child.kill()
        for child in self._children.values():
            child.kill()
            child.close()
        self._selector.close()
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()  # the guard kills processes with our marker, then exits
            self._guard.wait()

    def _report_pids(self) -> None:
        pids = {name: child.pid for name, child in self._children.items() if child.pid is not None}
        if self._guard is not None:
            pids["guard"] = self._guard.pid
        pids["up"] = os.getpid()
        if pids != self._reported_pids and all(child.is_settled for child in self._children.values()):
            try:
                self._on_pids(dict(pids))
            except OSError:  # a full disk: retried at the next turn
                if not self._reported_pids:
                    raise
            else:
                self._reported_pids = pids

    def _keep_guard(self) -> None:
        """Start the guard if it does not run, and send it the changed process groups of the children."""
        if self._guard is None or self._guard.poll() is not None:
            self._guarded = set()
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, self._marker, *self._temporary_files],
                env={},
                stdin=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        groups = {pid for child in self._children.values() for pid in child.pids}
        changes = [f"+{group}\n" for group in groups - self._guarded]
        changes += [f"-{group}\n" for group in self._guarded - groups]
        if changes and self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has just died: the next turn starts another
                self._guard.stdin.write("".join(changes).encode())
                self._guarded = groups

    @contextlib.contextmanager
    def _handled_signals(self) -> Iterator[None]:
        """Count SIGINT, SIGTERM and SIGHUP; they and SIGCHLD wake the loop."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self._selector.register(reader, selectors.EVENT_READ, lambda: _empty(reader))
        old_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        stop_signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        old = {number: signal.signal(number, self._count_signal) for number in stop_signals}
        old[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in old.items():
                signal.signal(number, handler)
            os.close(reader)
            os.close(writer)

    def _count_signal(self, *_: object) -> None:
        self._signals_seen += 1


def _is_done(child: Child) -> bool:
    return child.spec.step and child.phase is Phase.ENDED and child.exit_code == 0


def _why(child: Child) -> str:
    lines = "\n".join(f"    {line}" for line in child.log.tail(_SHOWN_LINES))
    return f"{child.spec.name} ended ({how_it_ended(child.exit_code)}) before it was ready:\n{lines}"


def _empty(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(fd, 512)
