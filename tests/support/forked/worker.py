"""A worker's side: from its fork to its exit it runs the tests that it is sent, and sends their reports."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType
from typing import Any, Literal, NoReturn

import pytest
from _pytest import fixtures, nodes
from _pytest._io import TerminalWriter
from _pytest.capture import CaptureManager, FDCapture

from dispatcher_project.supervisor.embedded import die_with_parent

MORE = "more"
"""Sent by a worker that needs its next tests."""
END = None
"""The answer if there are none."""


@dataclass(slots=True)
class Done:
    """One test is over, its fixtures' ends included."""

    test: int
    reports: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Stopped:
    """The worker runs no further test. why: of a test that stops the session, or a defect of a plugin."""

    why: Literal["interrupted", "internal error"]
    text: str


def work(
    session: pytest.Session, name: str, connection: Connection, *, basetemp: Path, parent: int
) -> NoReturn:
    """Run in a forked process until END comes or the parent is gone; the process ends here."""
    status = 1
    try:
        die_with_parent()
        if os.getppid() == parent:
            reports = _become_worker(session.config, name, basetemp)
            _in_one_chunk(_run, session, connection, reports)
            atexit._run_exitfuncs()
            status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _in_one_chunk(work: Callable[..., None], *arguments: object) -> None:
    """CPython keeps frames in chunks of 16 KiB, and each call across the end of one maps and unmaps the next:
    300,000 times in a test whose loop ran there. A frame larger than a chunk gets a larger one, with room for
    all that it calls."""
    work(*arguments)


_STACK_WORDS = 70_000
"""Those that are not used take no memory."""
_in_one_chunk.__code__ = _in_one_chunk.__code__.replace(co_stacksize=_STACK_WORDS)


class _Reports:
    """A pytest plugin: collects what one test reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.done = Done(-1)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.done.reports.append(data)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        self.done.warnings.append(
            {
                "category": warning_message.category.__name__,
                "text": str(warning_message.message),
                "filename": warning_message.filename,
                "lineno": warning_message.lineno,
                "when": when,
                "nodeid": nodeid,
                "location": location,
            }
        )


class _CapturedTerminal:
    """The terminal of plugins that write to one: what is captured of the test."""

    @property
    def _tw(self) -> TerminalWriter:
        return TerminalWriter(sys.stderr)


def _become_worker(config: pytest.Config, name: str, basetemp: Path) -> _Reports:
    """Give up what only one process can have: terminal, captured output, folder, exit functions."""
    atexit._clear()
    signal.signal(signal.SIGINT, _interrupt_once)
    _make_requests_cheap()
    config.workerinput = {"workerid": name}  # type: ignore[attr-defined]  # pytest-django names databases by it
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = basetemp
    basetemp.mkdir(mode=0o700)
    _own_captured_files(config.pluginmanager.getplugin("capturemanager"))
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.unregister(terminal)
    # pytest-timeout writes the stacks of all threads to it
    config.pluginmanager.register(_CapturedTerminal(), "terminalreporter")
    reports = _Reports(config)
    config.pluginmanager.register(reports)
    return reports


def _make_requests_cheap() -> None:
    """pytest 9.2 reads the signature of a new function whenever a fixture asks for `request`, twenty times in
    a test: a sixth of the CPU time around it."""
    names_of = fixtures.getfuncargnames
    fixtures.getfuncargnames = lambda function, *, name="", cls=None: (
        () if name == "request" else names_of(function, name=name, cls=cls)
    )


def _own_captured_files(capture: CaptureManager) -> None:
    """Under the same file objects: handlers of logs keep those."""
    capture.suspend_global_capture(in_=False)
    capturing = capture._global_capturing
    for one in (capturing.out, capturing.err) if capturing else ():
        if isinstance(one, FDCapture):
            with TemporaryFile(buffering=0) as file:
                os.dup2(file.fileno(), one.tmpfile.fileno(), inheritable=False)
    capture.resume_global_capture()


def _run(session: pytest.Session, connection: Connection, reports: _Reports) -> None:
    try:
        tests = _Tests(session, connection)
        while (test := tests.take()) is not END:
            item = session.items[test]
            reports.done = Done(test)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=tests)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            connection.send(reports.done)
    except (KeyboardInterrupt, pytest.exit.Exception) as error:
        session._setupstate.teardown_exact(None)
        with contextlib.suppress(OSError):  # the parent may be interrupted too
            connection.send(Stopped("interrupted", str(error) or type(error).__name__))
    except (EOFError, BrokenPipeError):
        session._setupstate.teardown_exact(None)
    except Exception:
        connection.send(Stopped("internal error", traceback.format_exc()))


class _Tests:
    """Those that were sent and have not begun. For pytest this is the item after each test: its collectors
    are read once the test has run, and only then are more tests asked for."""

    def __init__(self, session: pytest.Session, connection: Connection) -> None:
        self._items = session.items
        self._connection = connection
        self._left: deque[int] = deque()
        self._has_all = False

    def take(self) -> int | None:
        self._fill()
        return self._left.popleft() if self._left else END

    def listchain(self) -> list[nodes.Node]:
        """Return the next test's collectors, whose fixtures stay; empty after the last test."""
        self._fill()
        return self._items[self._left[0]].listchain() if self._left else []

    def _fill(self) -> None:
        if self._left or self._has_all:
            return
        try:
            self._connection.send(MORE)
            tests = self._connection.recv()
        except (EOFError, OSError):  # the parent is gone, or ends the run
            tests = END
        self._has_all = tests is END
        self._left.extend(tests or ())


def _interrupt_once(number: int, frame: FrameType | None) -> NoReturn:
    """The terminal and the parent both send SIGINT: the second one would break off the fixtures' ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt
