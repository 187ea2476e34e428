"""``python -m dispatcher_project.celery_transport.flower_socket <fd> <arguments of celery>``: Flower on an
inherited socket.

Flower can only be told a port, which another process may have taken when it comes to bind it. It has no
option for a socket that listens already: its one method that binds is replaced, which
tests/scenarios/test_up.py pins.
"""

from __future__ import annotations

import socket
import sys

from celery.__main__ import main
from flower.app import Flower

from dispatcher_project.celery_transport.flower_server import BoundedHTTPServer


def serve_on(listening: socket.socket) -> None:
    """From here on Flower serves there, in this process."""
    listening.setblocking(False)  # tornado accepts until nobody waits

    def start_http_server(app: Flower) -> int:
        server = BoundedHTTPServer(app, ssl_options=app.ssl_options, xheaders=app.options.xheaders)
        server.add_socket(listening)
        return int(listening.getsockname()[1])

    Flower.start_http_server = start_http_server


if __name__ == "__main__":
    serve_on(socket.socket(fileno=int(sys.argv.pop(1))))
    main()
