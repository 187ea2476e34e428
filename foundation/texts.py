"""Texts with counts. Pure."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """Return ``1 slot`` or ``2 slots``. many: the plural, if it is not `one` and an s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"
