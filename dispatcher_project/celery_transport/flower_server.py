"""Flower's HTTP server with limits; without them a connection may wait an hour for a request's head.

``python -m dispatcher_project.celery_transport.flower_server <fd> <arguments of flower>`` runs Flower on an
inherited socket. Flower has only an option for a port, which another process may take before Flower binds it.
So its method that binds is replaced, which tests/scenarios/test_up.py pins. Neither Celery's command line,
which imports a shell, nor Django's apps are loaded: Flower runs no task, and starts in half the CPU time.
"""

from __future__ import annotations

import logging
import socket
import sys
from types import SimpleNamespace
from typing import Any

from flower.app import Flower
from tornado.httpserver import HTTPServer

MAX_CONNECTIONS = 128
BOUNDS: dict[str, Any] = {
    "idle_connection_timeout": 60.0,  # for a request's head, also of the first one
    "body_timeout": 30.0,
    "max_header_size": 64 * 1024,
    "max_body_size": 1024 * 1024,
}


class BoundedHTTPServer(HTTPServer):
    """Tornado's server with `BOUNDS` and at most `max_connections` connections."""

    max_connections = MAX_CONNECTIONS

    def initialize(self, *args: Any, **options: Any) -> None:
        super().initialize(*args, **{**BOUNDS, **options})

    def handle_stream(self, stream: Any, address: tuple[Any, ...]) -> None:
        if len(self._connections) >= self.max_connections:
            stream.close()
            return
        super().handle_stream(stream, address)


def serve_on(listening: socket.socket) -> None:
    """Make Flower, in this process, serve on a listening socket."""
    listening.setblocking(False)  # tornado calls accept() until no connection is pending

    def start_http_server(app: Flower) -> int:
        server = BoundedHTTPServer(app, ssl_options=app.ssl_options, xheaders=app.options.xheaders)
        server.add_socket(listening)
        return int(listening.getsockname()[1])

    Flower.start_http_server = start_http_server


def main() -> None:
    from click import Context, Group
    from django.conf import settings
    from django.utils.log import configure_logging
    from flower.command import flower

    from dispatcher_project.celery import app

    serve_on(socket.socket(fileno=int(sys.argv.pop(1))))
    configure_logging(settings.LOGGING_CONFIG, settings.LOGGING)
    logging.getLogger("flower.inspector").setLevel(logging.ERROR)  # warns while no worker has answered yet
    app.loader.import_default_modules = lambda: None
    celery = Context(Group("celery"), obj=SimpleNamespace(app=app, quiet=False))
    flower.main(sys.argv[1:], prog_name="flower", parent=celery)


if __name__ == "__main__":
    main()
