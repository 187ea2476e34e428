"""The proxy passes everything on until a fault is ordered, and then fails as ordered."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.waiting import wait_for
from verification.proving.children import Children, NoReply
from verification.proving.proxies import Proxies
from verification.proving.proxy import _Route, _Side
from verification.proving.system import clean_environment


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection: socket.socket) -> None:
            with connection, contextlib.suppress(ConnectionResetError):
                while data := connection.recv(65536):
                    connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    children = Children(tmp_path, clean_environment())
    yield children
    children.close()


@pytest.fixture
def proxies(children: Children, echo: int) -> Proxies:
    return Proxies(children, {"echo": f"127.0.0.1:{echo}", "other": f"127.0.0.1:{echo}"})


def connect(proxies: Proxies, name: str = "echo") -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxies.port(name)), timeout=10)


def ask(connection: socket.socket, text: bytes = b"hello") -> bytes:
    connection.sendall(text)
    return connection.recv(65536)


def test_the_proxy_passes_on_bytes_and_their_end(proxies):
    with connect(proxies) as caller:
        assert ask(caller) == b"hello"
        caller.shutdown(socket.SHUT_WR)
        assert caller.recv(1) == b""


def test_a_silent_route_holds_bytes_back_until_it_is_healed(proxies):
    with connect(proxies) as caller, connect(proxies, "other") as other:
        assert ask(caller) == b"hello"
        proxies.silence("echo")
        caller.sendall(b"held")
        with connect(proxies) as newcomer:
            newcomer.sendall(b"new")
            for silent in (caller, newcomer):
                silent.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    silent.recv(1)
            assert ask(other) == b"hello"
            proxies.heal("echo")
            caller.settimeout(10)
            newcomer.settimeout(10)
            assert caller.recv(64) == b"held"
            assert newcomer.recv(64) == b"new"


def test_a_cut_resets_connections_and_takes_new_ones(proxies):
    with connect(proxies) as caller:
        assert ask(caller) == b"hello"
        proxies.cut("echo")
        with pytest.raises(ConnectionResetError):
            caller.recv(1)
    with connect(proxies) as again:
        assert ask(again) == b"hello"


def test_a_closed_route_refuses_until_it_is_healed_on_the_same_port(proxies):
    with connect(proxies) as caller:
        assert ask(caller) == b"hello"
        proxies.close("echo")
        with pytest.raises(ConnectionRefusedError):
            connect(proxies)
    proxies.heal("echo")
    with connect(proxies) as again:
        assert ask(again) == b"hello"


def test_a_slow_route_delays_all_bytes_and_keeps_their_order(proxies):
    with connect(proxies) as caller:
        assert ask(caller) == b"hello"
        proxies.slow("echo", 0.3)
        caller.sendall(b"a")
        proxies.heal("echo")
        caller.sendall(b"b")
        received = caller.recv(64)
        while len(received) < 2:
            received += caller.recv(64)
        assert received == b"ab"
        proxies.slow("echo", 0.3)
        with connect(proxies) as slow:
            begun = time.monotonic()
            assert ask(slow) == b"hello"
            assert time.monotonic() - begun >= 0.55


def test_an_order_to_a_proxy_that_is_gone_is_refused(proxies, children):
    children.close()
    with pytest.raises(NoReply):
        proxies.heal("echo")


def test_bytes_sent_before_the_target_is_connected_are_passed_on(echo: int) -> None:
    """The first releases of Python 3.11 read on despite a pause."""

    async def converse() -> bytes:
        answered = asyncio.get_running_loop().create_future()
        caller = Mock(is_closing=lambda: False, write=answered.set_result)
        side = _Side(_Route("127.0.0.1", echo))
        side.connection_made(caller)
        side.data_received(b"hello")
        return await asyncio.wait_for(answered, 10)

    assert asyncio.run(converse()) == b"hello"


def test_a_request_is_held_in_its_middle_until_it_is_forwarded(proxies):
    with connect(proxies) as one, connect(proxies) as other:
        proxies.hold("echo", "PUT /a.*part=2", 8)
        assert ask(one, b"PUT /b?part=2") == b"PUT /b?part=2"
        one.sendall(b"PUT /a?part=2 body")
        assert one.recv(100) == b"PUT /a?p"
        assert proxies.held("echo") == 1
        one.sendall(b" more")
        assert ask(other, b"PUT /a?part=2") == b"PUT /a?part=2", "one request is held"
        proxies.forward_held("echo")
        assert receive(one, b"art=2 body more")
        assert proxies.held("echo") == 0
        assert ask(one, b"PUT /a?part=2") == b"PUT /a?part=2"


def test_a_request_is_held_before_its_first_byte(proxies):
    proxies.hold("echo", "POST", 0)
    with connect(proxies) as one:
        one.sendall(b"POST /a")
        wait_for(lambda: proxies.held("echo") == 1)
        one.settimeout(0.2)
        with pytest.raises(TimeoutError):
            one.recv(100)
        one.settimeout(10)
        proxies.forward_held("echo")
        assert receive(one, b"POST /a")


def receive(connection: socket.socket, text: bytes) -> bool:
    got = b""
    while len(got) < len(text):
        got += connection.recv(100)
    return got == text
