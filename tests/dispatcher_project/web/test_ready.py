"""The web reports that it is ready once it listens, so that `up` takes no other server for it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from uvicorn.config import STARTUP_FAILURE

from dispatcher_project.supervisor.notify import READY, NotifySocket
from dispatcher_project.web.protocol import WebLimits
from dispatcher_project.web.server import make_server
from tests.support.servers.serving import serving


@pytest.fixture
def notified(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> NotifySocket:
    listening = NotifySocket(Path(tmp_path_factory.mktemp("n")) / "web")
    monkeypatch.setenv("NOTIFY_SOCKET", str(listening.path))
    return listening


def test_it_is_ready_once_it_listens(notified: NotifySocket) -> None:
    with serving(WebLimits(), _application) as served:
        served.wait_for(lambda: READY in notified.read(), "READY=1")


def test_it_is_never_ready_on_a_port_that_another_server_has(notified: NotifySocket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = make_server(_application, WebLimits(), host="127.0.0.1", port=port)
        with pytest.raises(SystemExit) as ended:
            asyncio.run(server.serve())
    assert ended.value.code == STARTUP_FAILURE
    assert notified.read() == set()


async def _application(scope: object, receive: object, send: object) -> None:
    """Never called."""
