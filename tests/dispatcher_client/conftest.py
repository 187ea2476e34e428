from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher_client import Client, transport

from .scripted import Scripted


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def server() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()


@pytest.fixture
def client(server: Scripted) -> Client:
    return Client(server.url, "the-key", retry_seconds=20)


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Set when the test ends: releases what hangs."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool.jsonl"


@pytest.fixture
def nowhere() -> str:
    """A URL without a listener."""
    return "http://127.0.0.1:1"
