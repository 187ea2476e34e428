"""Transfers that a thread moves between a connection's socket and a file of the store."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from artifacts.store.folder import Folder
from artifacts.store.local import LocalStore, Receiver
from dispatcher_project.web import direct_body
from dispatcher_project.web.artifact_bytes import ArtifactBytes
from dispatcher_project.web.protocol import Reason, WebLimits, bytes_in_kernel
from tests.support.servers.serving import Served, serving, status_and_code
from tests.support.sockets import until_closed
from tests.support.store_objects import key_of
from tests.support.transfers import files, get, put

LIMITS = WebLimits(idle_seconds=60.0)
ONE, OTHER = os.urandom(1_500_000), os.urandom(700_001)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store", "http://x/store", lambda: datetime.now(UTC), reserve_bytes=1)


def next_answer(stream: BinaryIO) -> tuple[int, bytes]:
    """Status and body of the next answer; answers may arrive together."""
    status, length = int(stream.readline().split()[1]), 0
    while line := stream.readline().strip():
        if line.lower().startswith(b"content-length:"):
            length = int(line[15:])
    return status, stream.read(length)


def test_a_connection_serves_further_requests_behind_each_transfer(store: LocalStore) -> None:
    with serving(LIMITS, ArtifactBytes(lambda: store)) as web:
        connection = web.connect(send=put(store, ONE) + ONE + get(store, ONE))  # the second one is sent ahead
        stream = connection.makefile("rb")
        assert next_answer(stream) == (200, b"")
        assert next_answer(stream) == (200, ONE)
        connection.sendall(put(store, OTHER) + OTHER)
        assert next_answer(stream) == (200, b"")
        connection.sendall(get(store, OTHER))
        assert next_answer(stream) == (200, OTHER)


def test_a_request_that_the_event_loop_has_read_with_the_body_is_answered(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, may_go_on = Receiver.add, threading.Event()

    def add_later(self: Receiver, data: bytes) -> None:
        may_go_on.wait(60)
        add(self, data)

    monkeypatch.setattr(Receiver, "add", add_later)
    data = OTHER[:1000]
    with serving(LIMITS, ArtifactBytes(lambda: store)) as web:
        connection = web.connect(send=put(store, data) + data[:10])
        web.wait_for(lambda: len(web.server.connections) == 1)
        (one,) = cast("list[Any]", web.server.connections._open)
        web.wait_for(lambda: one.cycle is not None and not one.cycle.message_event.is_set())
        connection.sendall(data[10:] + get(store, data))
        web.wait_for(lambda: not one.cycle.more_body)
        may_go_on.set()
        stream = connection.makefile("rb")
        assert next_answer(stream) == (200, b"")
        assert next_answer(stream) == (200, data)


def test_without_the_socket_bytes_pass_through_the_event_loop(store: LocalStore) -> None:
    application = ArtifactBytes(lambda: store)

    async def over_tls(scope: Any, receive: Any, send: Any) -> None:
        del scope[direct_body.KEY]
        await application(scope, receive, send)

    with serving(LIMITS, over_tls) as web:
        connection = web.connect(send=put(store, ONE) + ONE)
        stream = connection.makefile("rb")
        assert next_answer(stream) == (200, b"")
        connection.sendall(get(store, ONE))
        assert next_answer(stream) == (200, ONE)


def test_an_upload_that_is_refused_midway_gets_its_answer(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, free = ONE * 20, iter([10**9, 10**9, 0])  # more than the buffers between hold
    monkeypatch.setattr(Folder, "free_bytes", lambda self, file=None: next(free))
    with serving(LIMITS, ArtifactBytes(lambda: store)) as web:
        connection = web.connect(send=put(store, data) + data)
        said = until_closed(connection)
        assert status_and_code(said) == (507, "artifact_store_full")
        assert b"connection: close" in said
        web.wait_for(lambda: not files(store))


def begun(web: Served, store: LocalStore) -> socket.socket:
    """A download that waits for its client."""
    with store.receive(key_of(ONE * 16), len(ONE * 16)) as receiver:
        receiver.add(ONE * 16)
        receiver.finish()
    silent = web.connect(send=get(store, ONE * 16), receive_buffer=4096)
    web.wait_for(lambda: len(web.server.connections) == 1)
    (one,) = cast("list[Any]", web.server.connections._open)
    web.wait_for(lambda: bytes_in_kernel(one.transport.get_extra_info("socket")) > 0)
    return silent


def test_a_download_whose_client_does_not_read_is_ended(store: LocalStore) -> None:
    with serving(LIMITS, ArtifactBytes(lambda: store)) as web:
        silent = begun(web, store)
        web.let_pass(0)
        web.let_pass(29.9)
        assert len(web.server.connections) == 1
        web.let_pass(0.1)
        assert web.ended(Reason.READS_SLOWLY) == 1
        assert len(until_closed(silent)) < len(ONE * 16)
        web.wait_for(lambda: not web.server.server_state.tasks, "the application's end")


def test_transfers_end_with_the_server(store: LocalStore, settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, upload_idle_seconds=100.0)
    with serving(LIMITS, ArtifactBytes(lambda: store)) as web:
        begun(web, store)
        half = web.connect(send=put(store, ONE) + ONE[:1_000_000])
        web.wait_for(lambda: any(path.stat().st_size > 256 * 1024 for path in files(store)[1:]))
        web.server.should_exit = True
        web.wait_for(lambda: not web.server.server_state.tasks, "the transfers' end")
        assert until_closed(half) == b""
    assert len(files(store)) == 1
