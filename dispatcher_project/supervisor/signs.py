"""Cheap signs that a child is ready. Each is asked often, answers within a second and never raises."""

from __future__ import annotations

import errno
import socket

_TIMEOUT_SECONDS = 1.0


def port_is_open(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS):
            return True
    except OSError:
        return False


def http_says_ok(host: str, port: int, path: str) -> bool:
    """Whether GET answers 2xx. By hand: `http.client` would cost the supervisor 3 MB."""
    request = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS) as connection:
            connection.sendall(request.encode())
            status_line = connection.recv(64).split(b"\r\n", 1)[0]
    except OSError:
        return False
    return status_line[8:11] == b" 20"


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now. Raises OSError if `host` is no address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
