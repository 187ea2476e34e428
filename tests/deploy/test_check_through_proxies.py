"""`gpu-dispatcher check` through the proxies of deploy/, and through one that buffers event streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from dispatcher_project.cli import smoke_check
from dispatcher_project.web.protocol import WebLimits
from tests.deploy.proxied import CADDY, NGINX, Proxy, caddy, proxy
from tests.support.servers.api_imitation import ApiImitation
from tests.support.servers.serving import serving

Checked = Callable[..., dict[str, tuple[str, str]]]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Checked:
    """Level and text of each step."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def run(proxied: AbstractContextManager[Proxy], *, stream_seconds: float) -> dict[str, tuple[str, str]]:
        with proxied as one:
            monkeypatch.setenv("SSL_CERT_FILE", str(one.certificate))
            smoke_check.main([one.url, "--key", "k", "--json"], stream_seconds=stream_seconds)
        steps = json.loads(capsys.readouterr().out)["steps"]
        return {step["step"]: (step["level"], step["what"]) for step in steps}

    return run


ALL_WELL = dict.fromkeys(("reach", "ready", "key", "submit", "events", "result"), "ok")


def levels(steps: dict[str, tuple[str, str]]) -> dict[str, str]:
    assert steps["tls"][1].startswith("TLSv1.3, the certificate is valid for 0 more hours")
    return {step: level for step, (level, _) in steps.items() if step != "tls"}


@pytest.mark.skipif(CADDY is None, reason="no Caddy on this machine")
def test_caddy_passes_event_streams_on(checked: Checked, tmp_path: Path) -> None:
    with serving(WebLimits(), ApiImitation(stream_seconds=20.0)) as served:
        assert levels(checked(caddy(tmp_path, served.port), stream_seconds=8.0)) == ALL_WELL


@pytest.mark.skipif(NGINX is None, reason="no nginx on this machine")
@pytest.mark.parametrize("heeds", [True, False])
def test_nginx_passes_event_streams_on_where_it_heeds_their_header(
    checked: Checked, tmp_path: Path, *, heeds: bool
) -> None:
    seconds = 8.0 if heeds else 0.5
    more = "on" if heeds else "on; proxy_ignore_headers X-Accel-Buffering"
    with serving(WebLimits(), ApiImitation(stream_seconds=20.0)) as served:
        steps = checked(proxy(tmp_path, served.port, proxy_buffering=more), stream_seconds=seconds)
    assert levels(steps) == ALL_WELL | ({} if heeds else {"events": "error"})
    assert steps["events"][1].startswith("not buffered" if heeds else "buffered: nothing of the event stream")
