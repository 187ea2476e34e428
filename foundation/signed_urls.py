"""Makes signed URLs useless in what GPU servers answer, which is stored, logged and shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import Any

from foundation.json_text import JsonText

_HINT = "ignature"
_SEPARATORS = ("?", "&", ";", "%3f", "%26", "\\u0026")
_NAMES = ("x-amz-signature", "signature")
_EQUALS = ("=", "%3d")
_VALUE = r"[^&\s\"'<>\\]"
_SIGNATURE = re.compile(
    rf"((?:{'|'.join(map(re.escape, _SEPARATORS))})(?:{'|'.join(_NAMES)})(?:{'|'.join(_EQUALS)})){_VALUE}+",
    re.IGNORECASE,
)
_REST_OF_VALUE = re.compile(f"{_VALUE}*")
_BEGINS = frozenset(
    whole[:length]
    for whole in map("".join, product(_SEPARATORS, _NAMES, _EQUALS))
    for length in range(1, len(whole) + 1)
)
"""Beginnings of the parameter of a signature, up to the whole of its separator, name and equals sign."""
_LONGEST_BEGIN = max(map(len, _BEGINS))


def without_signatures(text: str) -> str:
    """Return a text without the signatures of its URLs. A store refuses a URL without its signature."""
    return _SIGNATURE.sub(r"\1…", text) if _HINT in text else text


class SignatureFilter:
    """Takes the signatures of URLs out of a text that comes in pieces, also those cut in two between them. It
    remembers the last `_LONGEST_BEGIN` characters at most."""

    def __init__(self) -> None:
        self._begin, self._is_inside = "", False

    def filter(self, piece: str) -> str:
        """Return the next piece without signatures, and without the rest of one that began before it."""
        if self._is_inside:
            found = _REST_OF_VALUE.match(piece)
            assert found is not None  # it may be empty
            piece = piece[found.end() :]
            self._is_inside = not piece
        known, text = self._begin, self._begin + piece
        shown = without_signatures(text)
        if text:
            found_ends = (found.end() for found in _SIGNATURE.finditer(text))
            self._is_inside = _HINT in text and len(text) in found_ends
            self._begin = "" if self._is_inside else _begin_at_the_end(text)
        return shown[len(known) :]


def _begin_at_the_end(text: str) -> str:
    """Return the longest end of a text that is in `_BEGINS`, or an empty text."""
    for length in range(min(_LONGEST_BEGIN, len(text)), 0, -1):
        if text[-length:].lower() in _BEGINS:
            return text[-length:]
    return ""


def may_have_signatures(value: Any) -> bool:
    """Return True if a text of a JSON value may have the signature of a URL."""
    if isinstance(value, JsonText):
        return _HINT in value.text
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if type(one) is str:
            if _HINT in one:
                return True
        elif type(one) is list:
            waiting += one
        elif type(one) is dict:
            waiting += one
            waiting += one.values()
    return False


def replace_signed(value: Any, new: Callable[[str], Any]) -> Any:
    """Return a JSON value with `new(text)` in place of its texts that have the signature of a URL. Names of
    members lose the signature."""
    if type(value) is str:
        return new(value) if _HINT in value and _SIGNATURE.search(value) else value
    if type(value) is list:
        return [replace_signed(one, new) for one in value]
    if type(value) is dict:
        return {without_signatures(name): replace_signed(one, new) for name, one in value.items()}
    return value
