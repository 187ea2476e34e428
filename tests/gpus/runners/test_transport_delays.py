"""A server that writes head and body separately (Python's `http.server`) does not cost 40 ms per run."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from gpus.runners import connections
from tests.gpus.runners.posting import post
from tests.support.servers.handlers import QuietHandler, serve_handler

REQUESTS = 60
DELAYED_SECONDS = 0.04
"""What Linux puts an acknowledgement off for."""


class Plain(QuietHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.005)
        body = b'{"status": "success", "result": {}}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def plain_url() -> Iterator[str]:
    with serve_handler(Plain) as url:
        yield f"{url}/run"


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="the platform has no such option")
def test_an_answer_does_not_wait_for_a_delayed_acknowledgement(transport, plain_url: str) -> None:
    taken = sorted(_seconds(transport, plain_url) for _ in range(REQUESTS))
    assert taken[REQUESTS // 2] < DELAYED_SECONDS, [round(one, 3) for one in taken]


def test_a_platform_without_the_option_answers_too(
    transport, plain_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_TCP_QUICKACK", None)
    assert post(transport, plain_url).status == 200


def _seconds(transport, url: str) -> float:
    began = time.monotonic()
    assert post(transport, url).status == 200
    return time.monotonic() - began
