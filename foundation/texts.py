"""Texts that people read: counts in them. Pure."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """``1 slot``, ``2 slots``. many: where it is not `one` and an s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"
