"""Free ports on loopback."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path


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


_LOWEST = 10_001
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


class HeldPorts:
    """Free ports below those of outgoing connections, each with another one that is `apart` above it.

    They stay free for a server that starts later, and again: until `close` no other process gets one of them
    from this class, which holds the UDP ports of the same numbers.
    """

    def __init__(self, count: int, *, apart: int) -> None:
        self._guards = ExitStack()
        self.ports: list[int] = []
        highest = min(_first_outgoing_port(), 65_536) - apart
        candidates = iter(random.sample(range(_LOWEST, highest), highest - _LOWEST))
        while len(self.ports) < count:
            port = next(candidates)
            if self._hold(port, port + apart):
                self.ports.append(port)

    def close(self) -> None:
        self._guards.close()

    def _hold(self, *ports: int) -> bool:
        with ExitStack() as held:
            for port in ports:
                try:
                    guard = held.enter_context(socket.socket(type=socket.SOCK_DGRAM))
                    guard.bind(("127.0.0.1", port))
                    with socket.socket() as probe:
                        probe.bind(("127.0.0.1", port))
                except OSError:
                    return False
            self._guards.push(held.pop_all())
        return True


def _first_outgoing_port() -> int:
    """Return the first port that the system gives to a connection."""
    try:
        return int(_OUTGOING.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
