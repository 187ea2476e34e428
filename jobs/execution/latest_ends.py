"""Ends that the database confirmed lately, to be written again where it may have forgotten them.

A standby that is promoted lacks the primary's last commits, unless it is synchronous. To its rows a run whose
end is missing goes on for ever, on a slot that is free: it would be found by its age, a minute later, and
repeated. The worker still has the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from foundation.json_text import JsonText

KEPT_SECONDS = 10.0
"""Before the last commit that was confirmed. Standbys are seldom further behind."""
KEPT_BYTES = 8_000_000
"""Of all kept ends."""
LARGE_BYTES = 16_000
"""A result over this is not kept: its run is found by its age, and repeated."""
OWN_BYTES = 2_000
"""Of an end without its result, roughly."""

Apply = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class _Kept:
    at: float
    bytes: int
    apply: Apply
    about: Any


class LatestEnds:
    """monotonic: in seconds. For one thread: the writer's."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._kept: deque[_Kept] = deque()
        self._bytes = 0

    def add(self, result: Any, apply: Apply, about: Any) -> None:
        """An end that was just confirmed. apply: writes it again, if it is missing. about: handed back by
        `all` with it."""
        size = OWN_BYTES + rough_bytes(result, LARGE_BYTES)
        if size > OWN_BYTES + LARGE_BYTES:
            return
        self._kept.append(_Kept(self._monotonic(), size, apply, about))
        self._bytes += size
        self.drop_old()

    def drop_old(self) -> None:
        """Call it when a commit was confirmed."""
        since = self._monotonic() - KEPT_SECONDS
        while self._kept and (self._bytes > KEPT_BYTES or self._kept[0].at < since):
            self._bytes -= self._kept.popleft().bytes

    def all(self) -> list[tuple[Apply, Any]]:
        """In their order. They stay: a connection may break and come back before the database fails over."""
        return [(one.apply, one.about) for one in self._kept]


def rough_bytes(value: Any, limit: int) -> int:
    """Of a JSON value; counting ends over the limit."""
    found, rest = 0, [value]
    while rest and found <= limit:
        one = rest.pop()
        found += 16
        if isinstance(one, str):
            found += len(one)
        elif isinstance(one, JsonText):
            found += len(one.text)
        elif isinstance(one, dict):
            found += sum(map(len, one))
            rest.extend(one.values())
        elif isinstance(one, Sequence):
            rest.extend(one)
    return found
