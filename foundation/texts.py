"""Texts with counts, and without characters that a terminal or a log would interpret. Pure."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """Return ``1 slot`` or ``2 slots``. many: the plural, if it is not `one` and an s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def printable(text: str) -> str:
    """Escape characters that are not printable, such as terminal commands and line ends."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
