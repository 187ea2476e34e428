"""Memory of request bodies that are still arriving, over all connections of a web process.

Where it is used up, the body goes that has taken longest: a sender that drips one in never keeps others out.
"""

from __future__ import annotations

from typing import Protocol


class Arriving(Protocol):
    def give_up(self) -> None:
        """Its client is told that it took too long."""


class BodyBudget:
    """most_bytes: in memory at once."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._arriving: dict[Arriving, int] = {}
        """Bytes of each, by when it began."""

    def hold(self, body: Arriving, size: int) -> None:
        """It has so many bytes in memory now."""
        self._bytes += size - self._arriving.get(body, 0)
        self._arriving[body] = size
        while self._bytes > self._most_bytes and len(self._arriving) > 1:
            oldest = next(iter(self._arriving))
            self.release(oldest)
            oldest.give_up()

    def release(self, body: Arriving) -> None:
        """It has arrived, or never will."""
        self._bytes -= self._arriving.pop(body, 0)
