"""Readiness probes of children, which return within a second and never raise, and helpers for ports."""

from __future__ import annotations

import errno
import socket

LOOPBACK = "127.0.0.1"
_TIMEOUT_SECONDS = 1.0


def port_is_open(host: str, port: int) -> bool:
    """Return True if a server accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS):
            return True
    except OSError:
        return False


def http_says_ok(host: str, port: int, path: str) -> bool:
    """Return True if GET answers 2xx. Without `http.client`, which would take 3 MB in the supervisor."""
    request = f"GET {path} HTTP/1.0\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS) as connection:
            connection.sendall(request.encode())
            status_line = connection.recv(64).split(b"\r\n", 1)[0]
    except OSError:
        return False
    return status_line[8:11] == b" 20"


def listen_near(wanted: int, *, but_not: int) -> socket.socket:
    """Return a listening socket on loopback, at `wanted`, or at a free port if that is taken or is `but_not`.

    It listens at once: between a check for a free port and a later bind another process may take the port.
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
    with found:  # kept open, so that the system returns another port
        return socket.create_server((LOOPBACK, 0))


def port_is_free(host: str, port: int) -> bool:
    """Return True if a server could listen there now. Raises OSError if `host` is no address of this
    machine."""
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
