"""What a connection sends, with an end to how long a request's head or body may take."""

from __future__ import annotations

import io
import socket
import time

IDLE_SECONDS = 75.0
"""An answered connection waits so long for a next request. The dispatcher gives an idle one up after 4 s."""
HEAD_SECONDS = 10.0
HEAD_BYTES = 64 * 1024
BODY_IDLE_SECONDS = 10.0
BODY_SECONDS = 120.0


class HeadTooLarge(ConnectionError):
    """A request's head has more than `HEAD_BYTES`."""


class Reading(io.RawIOBase):
    """Raises TimeoutError where it takes too long, HeadTooLarge."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._idle = False
        self._until = time.monotonic() + HEAD_SECONDS
        self._left: int | None = HEAD_BYTES
        """Bytes of the head that may come. None: it is a body."""

    def readable(self) -> bool:
        return True

    def await_next_head(self) -> None:
        self._idle, self._until, self._left = True, time.monotonic() + IDLE_SECONDS, HEAD_BYTES

    def await_body(self) -> None:
        self._idle, self._until, self._left = False, time.monotonic() + BODY_SECONDS, None

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        patience = self._until - time.monotonic()
        if patience <= 0:
            raise TimeoutError
        self._connection.settimeout(patience if self._left is not None else min(patience, BODY_IDLE_SECONDS))
        if self._left is not None:
            if not self._left:
                raise HeadTooLarge
            buffer = buffer[: self._left]
        count = self._connection.recv_into(buffer)
        if self._left is not None:
            self._left -= count
        if self._idle and count:
            self._idle, self._until = False, time.monotonic() + HEAD_SECONDS
        return count
