"""No thread waits for a client that does not read its response: static files are sent in blocks."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from urllib.parse import urlsplit

import requests

from dispatcher_project.wiring import WSGI_THREADS
from tests.support.live_web import redis_url, tenant, web
from tests.support.servers.web import Web

__all__ = ["redis_url", "tenant", "web"]
LARGE_FILE = "/static/drf_spectacular_sidecar/redoc/bundles/redoc.standalone.js.map"


def test_clients_that_do_not_read_a_static_file_block_no_thread(web: Web) -> None:
    size = int(requests.head(web.url + LARGE_FILE, timeout=60).headers["Content-Length"])
    assert size > 3_500_000, "more than the sockets buffer"
    calls = f"GET {LARGE_FILE} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(WSGI_THREADS + 2):
            silent = stack.enter_context(socket.socket())
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect((urlsplit(web.url).hostname, urlsplit(web.url).port))
            silent.sendall(calls)
        assert requests.get(f"{web.url}/api/v1/schema", timeout=60).status_code == 200
