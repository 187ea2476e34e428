"""Where a process listens."""

from __future__ import annotations

LOOPBACK = "127.0.0.1"


def split_address(address: str) -> tuple[str, int]:
    """``8001`` (loopback) or ``0.0.0.0:8001``. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not [HOST:]PORT")
    return host.strip("[]") or LOOPBACK, int(port)
