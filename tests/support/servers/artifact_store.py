"""An ASGI application, and a local store of artifacts, behind the real web server in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from artifacts.store.local import LocalStore
from dispatcher_project.web.artifact_bytes import ArtifactBytes
from dispatcher_project.web.protocol import WebLimits
from dispatcher_project.web.server import make_server


@contextmanager
def serving(application: Any) -> Iterator[str]:
    """The application behind the real web server of this process; its URL."""
    server = make_server(
        application, WebLimits(), host="127.0.0.1", port=0, log_config=None, timeout_graceful_shutdown=1
    )
    thread = threading.Thread(target=server.run, name="web", daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < until
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)


@contextmanager
def serving_store(store: Callable[[], LocalStore | None]) -> Iterator[str]:
    """The bytes of a local store; the URL of their server."""
    with serving(http_only(ArtifactBytes(store))) as url:
        yield url


def http_only(application: Any) -> Any:
    """The application with ASGI's lifespan, which only the web process's own application has."""

    async def begin(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await application(scope, receive, send)
            return
        for answer in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{answer}.complete"})

    return begin
