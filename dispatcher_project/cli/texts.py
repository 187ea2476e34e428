"""Texts for a terminal: made harmless, and durations. Without rich, so that plain lines cost no import."""

from __future__ import annotations

import unicodedata


def plain(text: object, limit: int = 0) -> str:
    """On one line and without control characters: names and error messages come from other machines. limit:
    characters, 0 for all."""
    line = harmless(" ".join(str(text).split()))
    return line if not limit or len(line) <= limit else f"{line[: max(limit - 1, 0)]}…"


def harmless(text: str) -> str:
    """Every control character but line ends and tabs becomes ``·``: escape sequences, marks that turn the
    direction of writing."""
    if text.isprintable():
        return text
    return "".join(mark if mark in "\n\t" or unicodedata.category(mark)[0] != "C" else "·" for mark in text)


def age(seconds: float | None) -> str:
    """Short, of two units at most: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h 10 min``, ``3 d 4 h``."""
    if seconds is None:
        return "–"
    seconds = max(seconds, 0.0)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"
