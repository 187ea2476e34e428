"""Clients that vanish, and the end of the server while requests are under way: no errors in the log, and
nothing left of what was not whole."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from artifacts.keys import ObjectKey
from artifacts.store.local import LocalStore, Receiver
from dispatcher_project.web import artifact_bytes
from dispatcher_project.web.artifact_bytes import ArtifactBytes
from dispatcher_project.web.protocol import WebLimits
from tests.support.servers.serving import WHOLE, serving, status_and_code
from tests.support.sockets import until_closed
from tests.support.transfers import files, get, put

LIMITS = WebLimits(idle_seconds=60.0)
DATA = os.urandom(3_000_000)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store", "http://x/store", lambda: datetime.now(UTC), reserve_bytes=1)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is logged as an error."""
    yield
    assert not [one.getMessage() for one in caplog.get_records("call") if one.levelno >= logging.ERROR]


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def half_close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("vanish", [socket.socket.close, reset, half_close])
def test_an_upload_whose_client_vanishes_ends_without_an_answer(store: LocalStore, vanish: Any) -> None:
    with serving(LIMITS, ArtifactBytes(lambda: store)) as web:
        connections = [web.connect(send=put(store, DATA) + DATA[:2_000_000]) for _ in range(8)]
        web.wait_for(lambda: len(files(store)) == 8)
        for connection in connections:
            vanish(connection)
        web.wait_for(lambda: not files(store) and not len(web.server.connections))
        if vanish is half_close:
            assert [until_closed(one) for one in connections] == [b""] * 8


def test_a_download_whose_client_is_too_slow_ends_without_an_error(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DATA * 8
    with store.receive(ObjectKey(7, hashlib.sha256(data).hexdigest()), len(data)) as receiver:
        receiver.add(data)
        receiver.finish()
    with serving(LIMITS, ArtifactBytes(lambda: store)) as web:
        monkeypatch.setattr("dispatcher_project.web.exchange.is_too_slow", lambda moved, began: True)
        assert len(until_closed(web.connect(send=get(store, data)))) < len(data)
        web.wait_for(lambda: not len(web.server.connections))


def test_the_end_of_the_server_cuts_uploads_off_and_keeps_nothing(store: LocalStore) -> None:
    with serving(LIMITS, ArtifactBytes(lambda: store)) as web:
        connections = [web.connect(send=put(store, DATA) + DATA[:2_000_000]) for _ in range(8)]
        web.wait_for(lambda: len(files(store)) == 8)
        web.server.should_exit = True
        for connection in connections:
            until_closed(connection)
        web.wait_for(lambda: not files(store))


def test_a_file_that_is_opened_while_the_server_ends_is_closed(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, receiver = artifact_bytes._receiver, list[Receiver]()

    def open_late(*arguments: Any) -> Any:
        receiver.append(opening(*arguments))  # type: ignore[arg-type]
        web.server.should_exit = True
        web.wait_for(lambda: not len(web.server.connections))
        return receiver[0]

    monkeypatch.setattr(artifact_bytes, "_receiver", open_late)
    with serving(LIMITS, ArtifactBytes(lambda: store)) as web:
        until_closed(web.connect(send=put(store, DATA)))
        web.wait_for(lambda: not files(store))
        assert not receiver[0]._is_open


@pytest.mark.parametrize("has_begun", [True, False])
def test_the_end_of_the_server_answers_requests_that_wait_and_ends_streams(has_begun: bool) -> None:
    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        if has_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
        seen.append(scope)
        await asyncio.sleep(3600)

    seen: list[Any] = []
    with serving(LIMITS, waiting) as web:
        connections = [web.connect(send=WHOLE) for _ in range(3)]
        web.wait_for(lambda: len(seen) == 3)
        web.server.should_exit = True
        for connection in connections:
            said = until_closed(connection)
            if has_begun:
                assert b"one" in said
                assert not said.endswith(b"0\r\n\r\n"), "the client sees that it was cut"
            else:
                assert status_and_code(said) == (503, "web_stopping")
                assert b"retry-after: 2" in said
