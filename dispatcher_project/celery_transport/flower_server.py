"""Flower's HTTP server with bounds: as it comes, a connection may wait an hour for a request's head."""

from __future__ import annotations

from typing import Any

from tornado.httpserver import HTTPServer

MOST_CONNECTIONS = 128
BOUNDS: dict[str, Any] = {
    "idle_connection_timeout": 60.0,  # for a request's head, also of the first one
    "body_timeout": 30.0,
    "max_header_size": 64 * 1024,
    "max_body_size": 1024 * 1024,
}


class BoundedHTTPServer(HTTPServer):
    def initialize(self, *args: Any, **options: Any) -> None:
        super().initialize(*args, **{**BOUNDS, **options})

    def handle_stream(self, stream: Any, address: tuple[Any, ...]) -> None:
        if len(self._connections) >= MOST_CONNECTIONS:
            stream.close()
            return
        super().handle_stream(stream, address)
