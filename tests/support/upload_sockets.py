"""Requests to the web over sockets, by hand."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.support.api_harness import Account
from tests.support.servers.web import Web

SUBMIT, BATCH = "/api/v1/queue/submit", "/api/v1/queue/submit-batch"


JOB = {"model": "zimg", "payload": {}}


MB = 1024 * 1024


def bearer(account: Account) -> dict[str, str]:
    return {"Authorization": f"Bearer {account.key}"}


class Sockets:
    """Raw requests whose bodies are sent by the test."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        parts = urlsplit(url)
        self._address, self._stack = (parts.hostname, parts.port), stack

    def begin(self, path: str, length: int | None, **headers: str) -> socket.socket:
        """Send only the head of a request. length: of its body, None: it does not say."""
        connection = self._stack.enter_context(socket.create_connection(self._address, timeout=60))
        head = {"Host": "127.0.0.1", "Content-Type": "application/json"}
        if length is not None:
            head["Content-Length"] = str(length)
        head |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{name}: {value}" for name, value in head.items()]
        connection.sendall("\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode())
        return connection


@pytest.fixture
def sockets(web: Web) -> Iterator[Sockets]:
    with ExitStack() as stack:
        yield Sockets(web.url, stack)


def answer_of(connection: socket.socket) -> tuple[int, str]:
    """Read status and error code until the server closes the connection."""
    result = b""
    while part := connection.recv(65536):
        result += part
    head, _, body = result.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])["code"]
