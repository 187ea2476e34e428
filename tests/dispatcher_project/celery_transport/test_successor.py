"""A worker's successor: it must take jobs before the first process stops."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dispatcher_project.celery_transport.ordered_stop import PIPE_VARIABLE, Predecessor, start_successor
from dispatcher_project.supervisor.notify import NotifySocket

READY = f"import os; os.write(int(os.environ['{PIPE_VARIABLE}']), b'r')"
HANGS = "import signal; signal.pause()"


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NotifySocket:
    service = NotifySocket(tmp_path / "service")
    monkeypatch.setenv("NOTIFY_SOCKET", str(service.path))
    return service


@pytest.mark.parametrize(
    ("code", "comes_up"), [(READY, True), ("import sys; sys.exit(3)", False), (HANGS, False)]
)
def test_the_service_manager_gets_the_pid_of_a_ready_successor_only(
    service: NotifySocket, monkeypatch: pytest.MonkeyPatch, code: str, comes_up: bool
) -> None:
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-S", "-c", code])
    assert start_successor(lambda: False, ready_seconds=0.5 if code is HANGS else 60.0) is comes_up
    assert bool(service.read()) is comes_up
    service.close()


def test_a_stop_ends_the_wait_for_the_next_process(
    service: NotifySocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-S", "-c", HANGS])
    assert start_successor(lambda: True, ready_seconds=3600.0) is False
    assert service.read() == set()
    service.close()


def test_a_process_without_predecessor_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PIPE_VARIABLE, raising=False)
    absent = Predecessor()
    absent.tell_ready()
    assert not absent
