"""The parent's side: it collects, forks workers, hands tests out and shows what they report."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

from tests.support.forked.plan import Plan, units
from tests.support.forked.worker import END, Done, Stopped, work

LEFT_SECONDS = 10.0
"""Interrupted workers have so long to end their fixtures."""
_LOOK_SECONDS = 1.0
"""A worker's end is usually seen at once, by its pipe: unless a process that it forked keeps that open."""
_RESTARTS_PER_WORKER = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("forked").addoption(
        "--forks",
        type=int,
        default=0,
        metavar="N",
        help="Run tests in N processes, forked after collection",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.usepdb or config.option.collectonly:
        config.option.forks = 0
    if config.option.forks:
        config.pluginmanager.register(ForkedRun(config, config.option.forks))


@dataclass(slots=True)
class Worker:
    """pending: tests that were sent to it and have not been reported, in its order: it runs the first one."""

    name: str
    pid: int
    connection: Connection
    pending: deque[int] = field(default_factory=deque)
    has_all: bool = False


class ForkedRun:
    """A pytest plugin: the run of the collected tests."""

    def __init__(self, config: pytest.Config, processes: int) -> None:
        self._config = config
        self._processes = processes
        self._workers: list[Worker] = []
        self._names = (f"gw{number}" for number in range(1_000_000))
        self._restarts = _RESTARTS_PER_WORKER * processes

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if not session.items or (
            session.testsfailed and not self._config.option.continue_on_collection_errors
        ):
            return None  # as in pytest's own loop
        _refuse_threads()
        self._session = session
        self._plan = Plan(units(session.items), scenarios_at_once=max(1, self._processes // 2))
        try:
            for _ in range(self._processes):
                self._fork()
            self._follow()
        finally:
            self._end()
        return True

    def _follow(self) -> None:
        """Until all tests have been reported."""
        looked = time.monotonic()
        while self._workers:
            ready = wait([worker.connection for worker in self._workers], timeout=_LOOK_SECONDS)
            for worker in [one for one in self._workers if one.connection in ready]:
                if not self._receive(worker):
                    os.kill(worker.pid, signal.SIGKILL)  # if it lives, it is of no use without its pipe
                    self._remove(worker, os.waitpid(worker.pid, 0)[1])
            if time.monotonic() - looked > _LOOK_SECONDS:
                looked = time.monotonic()
                for worker in tuple(self._workers):
                    pid, status = os.waitpid(worker.pid, os.WNOHANG)
                    if pid:
                        self._remove(worker, status)

    def _fork(self) -> None:
        name = next(self._names)
        basetemp = self._config._tmp_path_factory.getbasetemp() / f"popen-{name}"  # type: ignore[attr-defined]
        ours, theirs = Pipe()
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            for worker in self._workers:
                worker.connection.close()
            work(self._session, name, theirs, basetemp=basetemp, parent=parent)
        theirs.close()
        self._workers.append(Worker(name, pid, ours))

    def _feed(self, worker: Worker) -> None:
        unit = self._plan.take(worker.name)
        worker.has_all = unit is None
        if unit is not None:
            worker.pending.extend(unit.tests)
        with contextlib.suppress(OSError):  # of one that has died
            worker.connection.send(END if unit is None else unit.tests)

    def _receive(self, worker: Worker) -> bool:
        """Take one message; return False if there will be no more."""
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            return False
        match message:
            case Done():
                worker.pending.remove(message.test)
                self._show(message)
            case Stopped():
                raise self._session.Interrupted(f"{worker.name}: {message.why}: {message.text}")
            case _:
                self._feed(worker)
        return True

    def _show(self, done: Done) -> None:
        hook = self._config.hook
        nodeid = self._session.items[done.test].nodeid
        # an item's own location is looked up in its source, which takes a third of the time
        location = done.reports[0]["location"]
        hook.pytest_runtest_logstart(nodeid=nodeid, location=location)
        for one in done.warnings:
            _show_warning(self._config, one)
        for data in done.reports:
            report = hook.pytest_report_from_serializable(config=self._config, data=data)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _remove(self, worker: Worker, status: int) -> None:
        """A crash is a failure of the test that ran; a new worker takes those that were to follow."""
        while worker.connection.poll() and self._receive(worker):
            pass
        self._workers.remove(worker)
        worker.connection.close()
        if status == 0 and worker.has_all and not worker.pending:
            return
        self._show_crash(worker, os.waitstatus_to_exitcode(status))
        self._plan.give_back(worker.name, tuple(worker.pending))
        self._restarts -= 1
        if self._restarts < 0:
            raise self._session.Interrupted("too many workers crashed")
        self._fork()

    def _show_crash(self, worker: Worker, code: int) -> None:
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
        if worker.pending:
            item = self._session.items[worker.pending.popleft()]
            nodeid, location = item.nodeid, item.location
            text = f"worker {worker.name!r} ended {how} while running {nodeid!r}"
        else:
            nodeid, location = f"worker {worker.name}", ("", None, "")
            text = f"worker {worker.name!r} ended {how} outside its tests"
        report = pytest.TestReport(
            nodeid, location, keywords={}, outcome="failed", longrepr=text, when="call"
        )
        self._config.hook.pytest_runtest_logreport(report=report)

    def _end(self) -> None:
        """Nobody is left: after an interruption workers end their fixtures first."""
        for worker in self._workers:
            worker.connection.close()
            os.kill(worker.pid, signal.SIGINT)
        until = time.monotonic() + LEFT_SECONDS
        while self._workers:
            worker = self._workers[0]
            if time.monotonic() > until:
                os.kill(worker.pid, signal.SIGKILL)
            if os.waitpid(worker.pid, os.WNOHANG)[0]:
                self._workers.remove(worker)
            else:
                time.sleep(0.02)


def _refuse_threads() -> None:
    """A fork takes no thread along, and locks that a thread holds stay locked."""
    threads = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
    if threads:
        names = ", ".join(threads)
        raise pytest.UsageError(f"importing the tests started threads ({names}): use -n in place of --forks")


def _show_warning(config: pytest.Config, sent: dict[str, Any]) -> None:
    message = warnings.WarningMessage(
        sent["text"], type(sent["category"], (Warning,), {}), sent["filename"], sent["lineno"]
    )
    config.hook.pytest_warning_recorded.call_historic(
        kwargs={
            "warning_message": message,
            "when": sent["when"],
            "nodeid": sent["nodeid"],
            "location": sent["location"],
        }
    )
