"""The proxy of deploy/nginx, started with a certificate of its own, in front of the real web server."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from dispatcher_project.settings.dispatcher import DispatcherSettings
from dispatcher_project.web.protocol import WebLimits
from jobs.events.stream import KEEP_ALIVE_SECONDS
from tests.deploy.proxied import FILES, NGINX, Proxy, configuration, mirror, proxy
from tests.support.live_web import redis_url, tenant, web
from tests.support.servers.serving import Served, serving
from tests.support.servers.web import Web
from tests.support.sockets import until_closed
from tests.support.waiting import wait_for

__all__ = ["redis_url", "tenant", "web"]
needs_nginx = pytest.mark.skipif(NGINX is None, reason="no nginx on this machine")
DEFAULTS = DispatcherSettings()


@pytest.fixture
def mirrored() -> Iterator[Served]:
    with serving(WebLimits(), mirror, forwarded_allow_ips="127.0.0.1") as served:
        yield served


@pytest.fixture
def before_mirror(mirrored: Served, tmp_path: Path) -> Iterator[Proxy]:
    with proxy(tmp_path, mirrored.port, client_header_timeout="1s", client_body_timeout="1s") as one:
        yield one


def ask(one: Proxy, path: str = "/", **options: Any) -> requests.Response:
    return requests.get(one.url + path, verify=str(one.certificate), timeout=60, **options)


@needs_nginx
def test_a_clients_own_forwarded_address_is_ignored(before_mirror: Proxy) -> None:
    lies = {
        "X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "http", "X-Forwarded-Host": "evil.example",
        "Forwarded": "for=203.0.113.9;host=evil.example",
    }  # fmt: skip
    received = ask(before_mirror, headers=lies).json()
    assert (received["client"], received["scheme"]) == ("127.0.0.1", "https")
    assert received["headers"]["host"] == f"127.0.0.1:{before_mirror.tls_port}"
    assert not {"x-forwarded-host", "forwarded"} & received["headers"].keys()
    assert "203.0.113.9" not in json.dumps(received)


def test_the_web_trusts_only_its_proxys_address(mirrored: Served) -> None:
    sent = b"GET / HTTP/1.0\r\nX-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\n\r\n"
    received = {
        source: json.loads(until_closed(mirrored.connect(source, sent)).partition(b"\r\n\r\n")[2])
        for source in ("127.0.0.1", "127.0.0.2")
    }
    assert (received["127.0.0.1"]["client"], received["127.0.0.1"]["scheme"]) == ("203.0.113.9", "https")
    assert (received["127.0.0.2"]["client"], received["127.0.0.2"]["scheme"]) == ("127.0.0.2", "http")


@needs_nginx
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_the_proxy_speaks_http_2(before_mirror: Proxy) -> None:
    done = subprocess.run(
        ["curl", "--silent", "--http2", "--cacert", before_mirror.certificate, before_mirror.url,
         "--output", "/dev/null", "--write-out", "%{http_version}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "2"


def test_only_the_web_sends_hsts() -> None:
    """The web sends it with each answer over https: a second one from the proxy would be a contradiction."""
    assert "add_header Strict-Transport-Security" not in configuration()


@needs_nginx
def test_plain_http_redirects_to_tls(before_mirror: Proxy) -> None:
    url = f"http://127.0.0.1:{before_mirror.plain_port}/x?y=1"
    answer = requests.post(url, allow_redirects=False, timeout=60)
    assert (answer.status_code, answer.headers["Location"]) == (308, "https://127.0.0.1/x?y=1")


@needs_nginx
def test_a_late_head_or_body_ends_at_the_proxy(tmp_path: Path) -> None:
    begun = (
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n[",
    )
    received = list[str]()

    async def recording(scope: Any, receive: Any, send: Any) -> None:
        received.append(scope["method"])
        await mirror(scope, receive, send)

    with (
        serving(WebLimits(), recording, forwarded_allow_ips="127.0.0.1") as served,
        proxy(tmp_path, served.port, client_header_timeout="1s", client_body_timeout="1s") as one,
    ):
        for sent in begun:
            with one.connect() as slow:
                slow.sendall(sent)
                assert _is_refused(slow)
        assert received == [], "no part of it came to the web"
        assert ask(one).status_code == 200
    assert received == ["GET"]


@needs_nginx
def test_the_proxy_limits_bodies_as_the_web_does(before_mirror: Proxy) -> None:
    most = b" " * DEFAULTS.max_push_bytes
    options: dict[str, Any] = {"verify": str(before_mirror.certificate), "timeout": 120}
    assert requests.post(before_mirror.url, data=most, **options).json()["length"] == len(most)
    with before_mirror.connect() as long:
        long.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (len(most) + 1))
        assert long.recv(100).startswith(b"HTTP/1.1 413")


@needs_nginx
@pytest.mark.parametrize("path", FILES)
def test_files_may_be_long_and_are_passed_on_as_they_come(
    before_mirror: Proxy, mirrored: Served, path: str
) -> None:
    length = DEFAULTS.max_push_bytes + 1
    with before_mirror.connect() as long:
        lines = (f"PUT {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {length}", "", "")
        long.sendall("\r\n".join(lines).encode())
        long.sendall(b"x")
        wait_for(lambda: len(mirrored.server.connections) == 1, what="the upload to reach the web")
        long.sendall(bytes(length - 1))
        answer = until_closed(long)
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["length"] == length


@needs_nginx
def test_an_event_stream_is_not_buffered(web: Web, tenant: Any, tmp_path: Path) -> None:
    with proxy(tmp_path, int(web.url.rpartition(":")[2])) as one, requests.Session() as client:
        client.trust_env = False
        client.verify = str(one.certificate)
        client.headers["Authorization"] = f"Bearer {tenant.key}"
        job = client.post(f"{one.url}/api/v1/queue/submit", json={"model": "zimg", "payload": {}}, timeout=60)
        assert job.status_code == 202, job.text
        events = f"{one.url}/api/v1/queue/jobs/{job.json()['job_id']}/events"
        with client.get(events, stream=True, timeout=60) as stream:
            assert stream.headers["Content-Type"].startswith("text/event-stream")
            lines = stream.iter_lines()
            found = next(line for line in lines if line.startswith(b"event:"))
            assert found, "while the job waits and the stream is open"


def test_the_proxys_timeouts_and_sizes_fit_the_webs() -> None:
    text = configuration()

    def value(name: str) -> float:
        found = re.search(rf"(?m)^\s*{name} (\d+)(s|m|k)?;", text)
        assert found, name
        return float(found[1]) * {"m": 1024 * 1024, "k": 1024}.get(found[2] or "", 1)

    assert value("client_header_timeout") == DEFAULTS.web_head_seconds
    assert value("client_body_timeout") == DEFAULTS.upload_idle_seconds
    assert value("send_timeout") == DEFAULTS.web_read_seconds
    assert value("client_max_body_size") == DEFAULTS.max_push_bytes >= DEFAULTS.max_batch_bytes
    assert value("proxy_read_timeout") > DEFAULTS.max_wait_seconds + DEFAULTS.answer_seconds
    assert value("proxy_read_timeout") > KEEP_ALIVE_SECONDS
    (upstream,) = re.findall(r"upstream dispatcher \{(.*?)\n\}", text, re.DOTALL)
    kept = re.search(r"keepalive_timeout (\d+)s;", upstream)
    assert kept
    assert float(kept[1]) < DEFAULTS.web_idle_seconds
    assert f"limit_conn dispatcher_addresses {DEFAULTS.web_connections_per_address};" in text


def _is_refused(connection: ssl.SSLSocket) -> bool:
    """Closed, with a 408 or with none."""
    try:
        said = connection.recv(100)
    except (ConnectionError, ssl.SSLError):
        return True
    return not said or said.startswith(b"HTTP/1.1 408")
