"""How much of an answer its client has taken, as far as the operating system tells."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
import sys
import termios
from typing import Any

_BYTES_ACKED = struct.Struct("=Q")
_BYTES_ACKED_AT = 120
"""Of `tcpi_bytes_acked` in Linux' `struct tcp_info`."""


def bytes_in_kernel(sock: Any) -> int:
    """Bytes that were written to the socket and are not acknowledged yet; 0 where that can't be read."""
    if sys.platform != "linux":
        return 0
    waiting = array.array("i", [0])
    try:
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, waiting)
    except OSError:
        return 0
    return waiting[0]


def bytes_acknowledged(sock: Any) -> int | None:
    """Bytes that the client's system has taken since the connection began; None where that can't be read."""
    if sys.platform != "linux":
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED_AT + _BYTES_ACKED.size)
        return int(_BYTES_ACKED.unpack_from(info, _BYTES_ACKED_AT)[0])
    except (OSError, struct.error):
        return None
