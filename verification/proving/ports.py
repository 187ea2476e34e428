"""Free ports on loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator


def free_ports() -> Iterator[int]:
    """Yield each free port once; another process may still take it before it is used."""
    given: set[int] = set()
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in given:
            given.add(port)
            yield port
