"""What is said over a raw connection."""

from __future__ import annotations

import socket


def until_closed(connection: socket.socket) -> bytes:
    """All of it, also where its end is a reset."""
    said = b""
    try:
        while part := connection.recv(65536):
            said += part
    except ConnectionResetError:
        pass
    return said
