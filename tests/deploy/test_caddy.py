"""The proxy of deploy/caddy, started with a certificate of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from dispatcher_project.settings.dispatcher import DispatcherSettings
from dispatcher_project.web.protocol import WebLimits
from tests.deploy.proxied import CADDY, CADDYFILE, FILES, Proxy, caddy, mirror
from tests.support.servers.serving import serving

needs_caddy = pytest.mark.skipif(CADDY is None, reason="no Caddy on this machine")
DEFAULTS = DispatcherSettings()


@pytest.fixture
def before_mirror(tmp_path: Path) -> Iterator[Proxy]:
    with (
        serving(WebLimits(), mirror, forwarded_allow_ips="127.0.0.1") as mirrored,
        caddy(tmp_path, mirrored.port) as one,
    ):
        yield one


@needs_caddy
def test_it_replaces_forwarded_addresses_and_limits_bodies(before_mirror: Proxy) -> None:
    lies = {
        "X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "http", "X-Forwarded-Host": "evil.example",
        "Forwarded": "for=203.0.113.9;host=evil.example",
    }  # fmt: skip
    options: dict[str, Any] = {"verify": str(before_mirror.certificate), "timeout": 120}
    most = b" " * DEFAULTS.max_push_bytes
    received = requests.post(before_mirror.url, headers=lies, data=most, **options).json()
    assert (received["client"], received["scheme"], received["length"]) == ("127.0.0.1", "https", len(most))
    assert received["headers"]["host"] == f"127.0.0.1:{before_mirror.tls_port}"
    assert not {"x-forwarded-host", "forwarded"} & received["headers"].keys()
    assert "203.0.113.9" not in json.dumps(received)
    refused = requests.post(before_mirror.url, data=most + b" ", **options)
    assert refused.status_code in (413, 502), "502 where the limit is met after the web was asked"


@needs_caddy
@pytest.mark.parametrize("path", FILES)
def test_files_may_be_long(before_mirror: Proxy, path: str) -> None:
    data = bytes(DEFAULTS.max_push_bytes + 1)
    url = before_mirror.url + path
    answer = requests.put(url, data=data, verify=str(before_mirror.certificate), timeout=120)
    assert answer.json()["length"] == len(data)


def test_its_timeouts_and_sizes_fit_the_webs() -> None:
    text = CADDYFILE.read_text()

    def value(name: str) -> int:
        found = re.search(rf"(?m)^\s*{name} (\d+)(s|MiB)", text)
        assert found, name
        return int(found[1])

    assert value("max_size") * 1024 * 1024 == DEFAULTS.max_push_bytes
    assert value("read_header") == DEFAULTS.web_head_seconds
    assert value("keepalive") < DEFAULTS.web_idle_seconds
    assert value("response_header_timeout") > DEFAULTS.max_wait_seconds + DEFAULTS.answer_seconds
    assert re.search(r"lb_retries 0\b", text)
    assert not re.search(r"(?m)^\s*(read_body|write) ", text), "either would cut long transfers"
