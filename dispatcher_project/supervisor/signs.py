"""Cheap signs that a child is ready, asked often, that answer within a second and never raise; and ports."""

from __future__ import annotations

import errno
import socket

LOOPBACK = "127.0.0.1"
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


def listen_near(wanted: int, *, but_not: int) -> socket.socket:
    """A listening socket on loopback: at `wanted`, or at a free port if that is taken or is `but_not`.

    Who only asks whether a port is free, and lets somebody bind it later, can be overtaken.
    """
    if wanted != but_not:
        try:
            return socket.create_server((LOOPBACK, wanted))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    found = socket.create_server((LOOPBACK, 0))
    if found.getsockname()[1] != but_not:
        return found
    with found:  # held meanwhile, so that the system gives another
        return socket.create_server((LOOPBACK, 0))


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
