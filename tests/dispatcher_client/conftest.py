from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher_client import Client, transport
from tests.dispatcher_client.in_loop import blocking_clients
from tests.dispatcher_client.scripted import Scripted
from tests.support.new_client import NewClient


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def server() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()


@pytest.fixture(params=["blocking", "asyncio"])
def new_client(request: pytest.FixtureRequest) -> Iterator[NewClient]:
    """Makes a `Client`, or an `AsyncClient` with its methods."""
    if request.param == "blocking":
        yield Client
        return
    pytest.importorskip("httpx", reason="httpx comes with the extra `dev`")
    with blocking_clients() as new:
        yield new


@pytest.fixture
def client(server: Scripted, new_client: NewClient) -> Client:
    return new_client(server.url, "the-key", retry_seconds=20)


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
