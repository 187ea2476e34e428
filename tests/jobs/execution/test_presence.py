"""A process keeps writing its presence, whatever its first read of the table did."""

from __future__ import annotations

import threading

import pytest

from gpus.models import Process
from gpus.registry import processes
from jobs.execution.presence import Presence
from tests.support.fakes import make_ports


def test_a_failed_cleanup_of_dead_processes_does_not_stop_the_presence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise RuntimeError("no table for this thread")

    lives = threading.Event()
    monkeypatch.setattr(processes, "forget_silent", refuse)
    monkeypatch.setattr(processes, "sign_off", lambda name: None)
    presence = Presence(make_ports(), Process.Kind.WEB, each_step=lives.set)
    presence.start()
    try:
        assert lives.wait(60)
    finally:
        presence.stop()
