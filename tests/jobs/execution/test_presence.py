"""A process goes on saying that it lives, whatever its first look at the table did."""

from __future__ import annotations

import threading

import pytest

from gpus.models import Process
from gpus.registry import processes
from jobs.execution.presence import Presence
from tests.support.fakes import make_ports


def test_a_process_that_cannot_clear_away_the_silent_ones_says_that_it_lives(
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
