"""Sortable ids (ULID): 48 bits of time and 80 random bits, in Crockford's base 32."""

from __future__ import annotations

import re
import secrets
import threading
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
ID_LENGTH = 26
ID_PATTERN = re.compile(rf"[{_ALPHABET}]{{{ID_LENGTH}}}\Z")

clock, chance_bits = time.time, secrets.randbits
"""The sources of time and random bits; the simulation replaces them."""

# of the process, so that its ids sort by order of creation
_lock = threading.Lock()
_last_milliseconds = -1
_last_chance = 0


def new_id(now_seconds: float | None = None) -> str:
    """Return an id of 26 characters that sorts by time of creation.

    Within one process and millisecond it sorts by order of creation: the jobs of a batch list in the order of
    the request. Source: the ULID specification."""
    global _last_milliseconds, _last_chance
    milliseconds = int((clock() if now_seconds is None else now_seconds) * 1000)
    with _lock:
        if milliseconds == _last_milliseconds:
            _last_chance += 1 + chance_bits(16)
        else:
            _last_milliseconds, _last_chance = milliseconds, chance_bits(79)
        number = (milliseconds << 80) | _last_chance
    return _text(number)


def is_id(text: str) -> bool:
    """Return True if the text can be an id."""
    return ID_PATTERN.match(text) is not None


def lowest_id(now_seconds: float) -> str:
    """Return the lowest id of that millisecond, where a listing by time begins."""
    return _text(int(now_seconds * 1000) << 80)


def made_at(id_: str) -> float:
    """Return the time of creation, seconds since 1970. Raises ValueError if it is not an id."""
    if len(id_) != ID_LENGTH:
        raise ValueError(f"an id has {ID_LENGTH} characters")
    number = 0
    for character in id_[:10]:
        number = number << 5 | _ALPHABET.index(character)
    return number / 1000


def _text(number: int) -> str:
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in range(120, -10, -10)])
