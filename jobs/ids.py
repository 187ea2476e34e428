"""Sortable ids: 48 bits of time, 80 of chance, in Crockford's base 32 (the ULID layout)."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ID_LENGTH = 26


def new_id(now_seconds: float | None = None) -> str:
    """26 characters that sort by time of creation. Source: the ULID specification."""
    milliseconds = int((time.time() if now_seconds is None else now_seconds) * 1000)
    number = (milliseconds << 80) | secrets.randbits(80)
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -5, -5))
