"""Answers of many values: one at a time in a process, and never while a transaction is open.

Two million values come in 4 to 10 MB and take up to 150 MB as objects, as long as anything refers to them;
each of a worker's slots may have such an answer at the same time. What stays of a large one is text. Reading
it holds the interpreter for as long as a second: a writer that waited for it inside a transaction would keep
SQLite shut to all other processes.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TypeVar

from foundation.json_text import JsonText
from gpus.runners.base import Finished

T = TypeVar("T")

SMALL_BYTES = 64 * 1024
SMALL_VALUES = 10_000
"""What has fewer waits for nothing: texts and images have few values, however long they are."""


class Turn:
    """A lock that is taken in the order in which it was asked for. Not by a thread that has it already."""

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
"""Of this process: whoever reads a large answer, or writes a transaction."""
_ANSWERS = threading.Lock()
"""The others wait outside of the line, so that a transaction waits for no more than one."""


def read_in_turn(body: bytes, read: Callable[[], T]) -> T:
    """What `read` makes of a body. Of a large one, a result is a `JsonText`, and an error keeps no values."""
    if not _is_large(body):
        return read()
    with _ANSWERS, TURN:
        try:
            outcome = read()
        except Exception as error:
            _clear(error)
            raise
        if isinstance(outcome, Finished):
            return replace(outcome, result=JsonText.of(outcome.result))  # type: ignore[return-value]
        return outcome


def _is_large(body: bytes) -> bool:
    """By its values, as `foreign_json` counts them at most."""
    return len(body) >= SMALL_BYTES and sum(map(body.count, (b",", b"[", b"{"))) >= SMALL_VALUES


def _clear(error: BaseException | None) -> None:
    """Takes the values out of the frames that raised it: an error lives until the run's end is committed."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
