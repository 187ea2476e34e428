from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dispatcher_project.supervisor.signs import http_says_ok, listen_near, port_is_free, port_is_open
from tests.support.ports import free_port


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response({"/livez": 200, "/empty": 204}.get(self.path, 503))
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def closed_port() -> int:
    return free_port()


def test_ok_is_any_2xx(port: int) -> None:
    assert http_says_ok("127.0.0.1", port, "/livez")
    assert http_says_ok("127.0.0.1", port, "/empty")
    assert not http_says_ok("127.0.0.1", port, "/other")


def test_open_and_free_are_opposites(port: int, closed_port: int) -> None:
    assert port_is_open("127.0.0.1", port)
    assert not port_is_free("127.0.0.1", port)
    assert not port_is_open("127.0.0.1", closed_port)
    assert not http_says_ok("127.0.0.1", closed_port, "/livez")
    assert port_is_free("127.0.0.1", closed_port)


def test_a_foreign_address_is_an_error(closed_port: int) -> None:
    with pytest.raises(OSError, match="assign"):
        port_is_free("192.0.2.1", closed_port)


def test_a_chosen_port_is_held(closed_port: int) -> None:
    with listen_near(closed_port, but_not=1) as first, listen_near(closed_port, but_not=1) as second:
        assert first.getsockname()[1] == closed_port
        assert second.getsockname()[1] != closed_port


def test_a_reserved_port_is_not_chosen(closed_port: int) -> None:
    with listen_near(closed_port, but_not=closed_port) as found:
        assert found.getsockname()[1] != closed_port
