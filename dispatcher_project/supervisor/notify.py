"""systemd's sd_notify protocol, with which a child reports readiness and liveness to its supervisor.

Under systemd (`Type=notify`, `WatchdogSec=`) and under `up` the messages are the same: datagrams ``READY=1``,
``WATCHDOG=1`` and ``STOPPING=1`` to the unix socket in NOTIFY_SOCKET.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

READY = "READY=1"
ALIVE = "WATCHDOG=1"
STOPPING = "STOPPING=1"
"""The process takes no more work; `up` starts the next one now instead of after its end."""


def notify(message: str, *, seconds: float = 0.0) -> bool:
    """Send a message to the supervisor; return True if it was accepted.

    Returns False without NOTIFY_SOCKET or without a reader. seconds: how long to wait if the socket is full.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):  # systemd's notation for an abstract socket
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(seconds)
        sender.sendto(message.encode(), address)
        return True
    return False


class NotifySocket:
    """The supervisor's end of the socket, one per process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(path))

    def fileno(self) -> int:
        return self._socket.fileno()

    def read(self) -> set[str]:
        """Return all received messages."""
        messages: set[str] = set()
        with contextlib.suppress(BlockingIOError):
            while True:
                messages.update(self._socket.recv(4096).decode(errors="replace").split("\n"))
        return messages

    def close(self) -> None:
        self._socket.close()
        self.path.unlink(missing_ok=True)
