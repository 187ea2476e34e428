"""Reads JSON that came from a GPU server, with distrust: what no database can store is refused here."""

from __future__ import annotations

from typing import Any

from foundation import foreign_json
from gpus.errors import RunFailed


class Unreadable(RunFailed):
    """The answer is not what the protocol says."""


def read_json(body: bytes) -> Any:
    """Raises Unreadable: not JSON, NaN or infinite numbers, text that can't be stored, or too much
    of something (`foreign_json.Bounds`)."""
    try:
        value = foreign_json.read(body)
        if foreign_json.may_be_unstorable(body):
            _check_texts(value)
    except foreign_json.TooMuch as error:
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
