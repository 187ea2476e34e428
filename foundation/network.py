"""Socket time-outs, a rate limit of bytes, and the network that counts as one client.

Python's `settimeout` makes a socket non-blocking: each read and write is then a poll and the call itself, and
each of the two releases the GIL and must acquire it again, which among many threads costs more than the call.
Here the operating system applies the time-outs.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network

MIN_SECONDS = 0.001
"""Zero would mean no time-out."""

OVERHEAD_BYTES = 1024
"""Bytes that one frame or line counts beside its own."""

IPV6_BITS = 64
"""The smallest network that a provider gives to one customer."""
_LONGEST_NAME = 50


def use_system_timeouts(sock: socket.socket) -> None:
    """Make the socket blocking, with the time-outs of `limit_reads` and `limit_writes`; then it raises
    BlockingIOError."""
    sock.settimeout(None)


def limit_reads(sock: socket.socket, seconds: float) -> None:
    """Set the time-out of reads."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))


def limit_writes(sock: socket.socket, seconds: float) -> None:
    """Set the time-out of writes."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds))


def _timeval(seconds: float) -> bytes:
    micros = int(max(MIN_SECONDS, seconds) * 1_000_000)
    return struct.pack("@ll", micros // 1_000_000, micros % 1_000_000)


class ByteRateLimiter:
    """A token bucket of bytes, for a reader: a faster sender has to wait.

    per_second: bytes that flow in. burst: returns the bytes that the bucket may hold."""

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
        """Wait until this many bytes, of one frame or line, may be read."""
        now, burst = self._now(), self._burst()
        self._left = min(burst, self._left + (now - self._at) * self._per_second) - size - OVERHEAD_BYTES
        self._at = now
        if self._left < 0:
            self._sleep(-self._left / self._per_second)


def network_of(address: str) -> str:
    """Return an IPv4 address as it is, and the /64 network of an IPv6 address; a mapped IPv4 address is
    IPv4."""
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
    """Return True for an IP address, or a network of `network_of`."""
    try:
        ip_network(text)
    except ValueError:
        return False
    return "/" not in text or (":" in text and text.endswith("/64"))
