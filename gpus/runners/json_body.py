"""Reads JSON that came from a GPU server, with distrust: what no database can store is refused here.

Large answers are read one at a time in a process, and never while a transaction is open. Two million values
come in 4 to 10 MB and take up to 150 MB as objects, as long as anything refers to them; each of a worker's
slots may have such an answer at the same time. What stays of a large one is text. Reading it holds the
interpreter for as long as a second: a writer that waited for it inside a transaction would keep SQLite shut
to all other processes.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from foundation import json_text
from foundation.json_text import JsonText
from foundation.turn import TURN
from gpus.errors import RunFailed
from gpus.runners.base import Finished

T = TypeVar("T")
SMALL_BYTES = 64 * 1024
SMALL_VALUES = 10_000
"""An answer with fewer JSON values is read at once: texts and images have few, however long they are."""
_ANSWERS = threading.Lock()
"""Large answers take this lock before they queue for `TURN`, so that a transaction waits for one at most."""


class Unreadable(RunFailed):
    """The answer is not what the protocol says."""


def read_json(body: bytes) -> Any:
    """Raises Unreadable: not JSON, NaN or infinite numbers, text that can't be stored, or too much
    of something (`json_text.Bounds`)."""
    try:
        value = json_text.read(body)
        if json_text.may_be_unstorable(body):
            _check_texts(value)
    except json_text.TooMuch as error:
        raise Unreadable(f"The answer can't be read: {error}.") from error
    except ValueError as error:
        raise Unreadable(f"The answer is not JSON that can be stored: {error}") from error
    return value


def check_storable(value: Any) -> None:
    """Of JSON that came another way. Raises Unreadable."""
    try:
        _check_texts(value)
    except RecursionError:
        raise Unreadable("The result is nested too deep.") from None
    except ValueError as error:
        raise Unreadable(f"The result is not JSON that can be stored: {error}") from error


def _check_texts(value: Any) -> None:
    if isinstance(value, str):
        value.encode()  # half a surrogate pair raises UnicodeEncodeError, a ValueError
        if "\0" in value:
            raise ValueError("a text holds a NUL character")
    elif isinstance(value, list):
        for item in value:
            _check_texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_texts(key)
            _check_texts(item)


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
    """By its values, as `json_text` counts them at most."""
    return len(body) >= SMALL_BYTES and sum(map(body.count, (b",", b"[", b"{"))) >= SMALL_VALUES


def _clear(error: BaseException | None) -> None:
    """Takes the values out of the frames that raised it: an error lives until the run's end is committed."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
