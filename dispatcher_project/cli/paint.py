"""Text for a terminal: colours where there is one, tables, bars, ages. Pure but for `Paint.of`."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Collection, Sequence
from typing import Any

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}
_OWN_COLOURS = re.compile(r"(\x1b\[(?:0|(?:[12]|3[1-6])(?:;(?:[12]|3[1-6]))*)m)")


class Paint:
    """`paint("text", "red", "bold")`; without colours the text stays as it is."""

    def __init__(self, *, coloured: bool) -> None:
        self.coloured = coloured

    @classmethod
    def of(cls, out: Any) -> Paint:
        """Colours on a terminal that takes them, unless NO_COLOR says otherwise."""
        is_terminal = bool(getattr(out, "isatty", lambda: False)())
        wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(coloured=is_terminal and wanted)

    def __call__(self, text: object, *styles: str) -> str:
        codes = ";".join(str(_CODES[style]) for style in styles)
        return f"\x1b[{codes}m{text}\x1b[0m" if self.coloured and codes else str(text)


def plain(text: object, limit: int = 0) -> str:
    """On one line and without what would steer a terminal: error messages come from other machines. limit:
    characters, 0 for all."""
    line = " ".join(str(text).split())
    line = "".join(mark if unicodedata.category(mark)[0] != "C" else "·" for mark in line)
    return line if not limit or len(line) <= limit else f"{line[: max(limit - 1, 0)]}…"


def harmless(text: str) -> str:
    """What a screen says, with no control character but line ends, tabs and the colours of `Paint`: names,
    results and errors come from other machines."""
    if text.isprintable():
        return text
    parts = _OWN_COLOURS.split(text)
    parts[::2] = [
        "".join(mark if mark in "\n\t" or unicodedata.category(mark)[0] != "C" else "·" for mark in part)
        for part in parts[::2]
    ]
    return "".join(parts)


def width(text: str) -> int:
    """Columns that it takes."""
    return sum(2 if unicodedata.east_asian_width(mark) in "WF" else 1 for mark in _ESCAPES.sub("", text))


def fitted(line: str, columns: int) -> str:
    """At most so many columns; colours end with the line."""
    if width(line) <= columns:
        return line
    kept, taken, place = [], 0, 0
    while place < len(line):
        escape = _ESCAPES.match(line, place)
        if escape:
            kept.append(escape[0])
            place = escape.end()
            continue
        taken += width(line[place])
        if taken > columns - 1:
            break
        kept.append(line[place])
        place += 1
    return "".join(kept) + ("…\x1b[0m" if "\x1b" in line else "…")


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], paint: Paint, *, right: Collection[str] = ()
) -> list[str]:
    """Lines, each column as wide as it needs. right: the heads of columns of numbers."""
    widths = [max(width(cell) for cell in column) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str], *styles: str) -> str:
        padded = []
        for name, cell, room in zip(head, cells, widths, strict=True):
            gap = " " * (room - width(cell))
            text = paint(cell, *styles) if styles else cell
            padded.append(gap + text if name in right else text + gap)
        return "  ".join(padded).rstrip()

    return [line(head, "dim"), *(line(row) for row in rows)]


def bar(share: float, columns: int) -> str:
    """``████░░░░``; share: 0..1."""
    full = round(min(max(share, 0.0), 1.0) * columns)
    return "█" * full + "░" * (columns - full)


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
