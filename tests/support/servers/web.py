"""The real web process in a thread of this one: its server, the async layer, Django in threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connections

from dispatcher_project.web.protocol import WebLimits
from dispatcher_project.web.server import BoundedServer, make_server


@dataclass
class Web:
    """gateway: the layer behind the headers of every answer."""

    url: str
    gateway: Any
    server: BoundedServer


@contextmanager
def running_web(limits: WebLimits = WebLimits()) -> Iterator[Web]:  # noqa: B008 - it is frozen
    """On a free port; every thread's database connection is closed after its request."""
    from dispatcher_project.asgi import make_application

    kept = connections.settings["default"]["CONN_MAX_AGE"]
    connections.settings["default"]["CONN_MAX_AGE"] = 0
    application = make_application()
    server = make_server(
        application, limits, host="127.0.0.1", port=0, log_config=None, timeout_graceful_shutdown=1
    )
    thread = threading.Thread(target=server.run, name="web", daemon=True)
    thread.start()
    try:
        until = time.monotonic() + 60
        while not server.started:
            assert thread.is_alive(), "the server ended at start"
            assert time.monotonic() < until, "the server did not start"
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Web(f"http://127.0.0.1:{port}", application, server)
    finally:
        server.should_exit = True
        thread.join(60)
        presence = [one for one in threading.enumerate() if one.name == "presence"]
        for one in presence:  # it would meet the next test's database
            one.join(60)
        connections.settings["default"]["CONN_MAX_AGE"] = kept
        assert not [one.name for one in (thread, *presence) if one.is_alive()]
