"""Other machines: how long a socket to one is waited for, how fast it is read, and which addresses count as
one client.

Python's `settimeout` makes a socket non-blocking: each read and write is then a poll and the call itself, and
each of the two gives the interpreter away and has to get it back, which among many threads costs more than
the call. Here a time-out is the system's own.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network

LEAST_SECONDS = 0.001
"""Nothing would mean for ever."""

UNIT_BYTES = 1024
"""What one frame or line costs beside its bytes."""

IPV6_BITS = 64
"""The network that a provider gives to one customer at least."""
_LONGEST_NAME = 50


def block(sock: socket.socket) -> None:
    """What is read or written then takes as long as `limit_reads` and `limit_writes` say, and raises
    BlockingIOError when that is over."""
    sock.settimeout(None)


def limit_reads(sock: socket.socket, seconds: float) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))


def limit_writes(sock: socket.socket, seconds: float) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds))


def _timeval(seconds: float) -> bytes:
    micros = int(max(LEAST_SECONDS, seconds) * 1_000_000)
    return struct.pack("@ll", micros // 1_000_000, micros % 1_000_000)


class Pace:
    """A bucket of bytes: what a sender writes beyond it waits on its side, and in the end it does.
    per_second: what flows in; burst: what it may hold."""

    def __init__(
        self,
        per_second: float,
        burst: Callable[[], float],
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second, self._burst, self._now, self._sleep = per_second, burst, now, sleep
        self._left, self._at = burst(), now()

    def take(self, size: int) -> None:
        """Waits until so many bytes, of one frame or line, may be looked at."""
        now, burst = self._now(), self._burst()
        self._left = min(burst, self._left + (now - self._at) * self._per_second) - size - UNIT_BYTES
        self._at = now
        if self._left < 0:
            self._sleep(-self._left / self._per_second)


def network_of(address: str) -> str:
    """Return an IPv4 address as it is, of an IPv6 address its /64 network; a mapped IPv4 address is IPv4."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:_LONGEST_NAME]
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ip_network((int(parsed), IPV6_BITS), strict=False))
    return str(parsed)


def is_address(text: str) -> bool:
    """Whether the text is an IP address, or a network that IPv6 addresses are counted by."""
    try:
        ip_network(text)
    except ValueError:
        return False
    return "/" not in text or (":" in text and text.endswith("/64"))
