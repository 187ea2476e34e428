"""Sortable ids: 48 bits of time, 80 of chance, in Crockford's base 32 (the ULID layout)."""

from __future__ import annotations

import secrets
import threading
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
ID_LENGTH = 26

clock, chance_bits = time.time, secrets.randbits
"""Where time and chance come from; a simulator puts its own here."""

# of the process: its ids sort by their order of creation
_lock = threading.Lock()
_last_milliseconds = -1
_last_chance = 0


def new_id(now_seconds: float | None = None) -> str:
    """26 characters that sort by time of creation, and by order of creation within one process and
    millisecond: the jobs of a batch list in the order they were sent. Source: the ULID specification."""
    global _last_milliseconds, _last_chance
    milliseconds = int((clock() if now_seconds is None else now_seconds) * 1000)
    with _lock:
        if milliseconds == _last_milliseconds:
            _last_chance += 1 + chance_bits(16)
        else:
            _last_milliseconds, _last_chance = milliseconds, chance_bits(79)
        number = (milliseconds << 80) | _last_chance
    return _text(number)


def lowest_id(now_seconds: float) -> str:
    """The first id that could be made in that millisecond: where to begin reading by time."""
    return _text(int(now_seconds * 1000) << 80)


def made_at(id_: str) -> float:
    """When the id was made, seconds since 1970. Raises ValueError for what is no id."""
    if len(id_) != ID_LENGTH:
        raise ValueError(f"an id has {ID_LENGTH} characters")
    number = 0
    for character in id_[:10]:
        number = number << 5 | _ALPHABET.index(character)
    return number / 1000


def _text(number: int) -> str:
    return "".join([_PAIRS[(number >> shift) & 1023] for shift in range(120, -10, -10)])
