"""A lock of the process between its commits and its large answers: parsing a large answer holds the
interpreter for up to a second, and no transaction may be open meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class Turn:
    """A lock that is taken in the order in which it was asked for. Not reentrant."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_taken = False


TURN = Turn()
"""Of this process: taken to read a large answer or to write a transaction."""
