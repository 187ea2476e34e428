"""Sockets whose time-out is the system's own.

Python's `settimeout` makes a socket non-blocking: each read and write is then a poll and the call itself, and
each of the two gives the interpreter away and has to get it back, which among many threads costs more than
the call.
"""

from __future__ import annotations

import socket
import struct

LEAST_SECONDS = 0.001
"""Nothing would mean for ever."""


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
