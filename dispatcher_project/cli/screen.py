"""Text for a terminal, without control characters; tables, coloured lines and progress bars, by rich.

All text goes through `line` and `table`, which escape it; no console here interprets rich's markup. If stdout
is not a terminal, the output has no escape sequences and no line is wrapped or cut. Importing rich takes
0.1 s: only functions that print tables do.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from foundation.http_api.problems import Problem

UNLIMITED = 1_000_000
"""The width, in columns, of an output that is no terminal."""


def takes_colours(out: TextIO) -> bool:
    """Return True for a terminal with colours, unless NO_COLOR is set."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def console(out: TextIO, *, coloured: bool) -> Console:
    from rich.console import Console

    is_terminal = out.isatty()
    return Console(
        file=out,
        force_terminal=is_terminal,  # FORCE_COLOR does not matter here
        force_jupyter=False,
        color_system="standard" if coloured else None,
        width=None if is_terminal else UNLIMITED,
        height=None if is_terminal else 1,
        markup=False,
        emoji=False,
        highlight=False,
    )


def text_of(parts: Iterable[RenderableType], out: TextIO, *, coloured: bool) -> str:
    """The parts as `out` would show them, without trailing spaces."""
    from rich.console import Group

    printer, text = console(out, coloured=coloured), StringIO()
    printer.file = text
    printer.print(Group(*parts))  # a single text would lose its wrapping
    return "\n".join(row.rstrip(" ") for row in text.getvalue().split("\n"))


def line(*parts: str | tuple[str, str], wraps: bool = False) -> Text:
    """One line of text, which ends in ``…`` if it is wider than the terminal and does not wrap.

    parts: texts, or pairs of a text and its style."""
    from rich.text import Text

    harmless_parts = (_flat(part) if isinstance(part, str) else (_flat(part[0]), part[1]) for part in parts)
    return Text.assemble(*harmless_parts, no_wrap=not wraps, overflow="fold" if wraps else "ellipsis")


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    right: Collection[str] = (),
    gives_way: Collection[str] = ("",),
) -> Table:
    """A table without borders.

    Args:
        right: headings of right-aligned columns.
        gives_way: headings of the columns that a narrow terminal cuts first.
    """
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in head:
        made.add_column(
            line(name),
            justify="right" if name in right else "left",
            no_wrap=name not in gives_way,
            overflow="ellipsis",
        )
    for row in rows:
        made.add_row(*(line(plain(cell)) if isinstance(cell, str) else cell for cell in row))
    return made


def indented(mark: tuple[str, str], lines: Iterable[Text], columns: int) -> Table:
    """Lines to the right of a mark; a long line wraps at their left edge."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=columns)
    grid.add_column(overflow="fold")
    for text in lines:
        grid.add_row(line(mark), text)
        mark = ("", "")
    return grid


@contextmanager
def progress(out: TextIO, label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that draws the number of finished items, without effect if `out` is not a terminal."""
    if not out.isatty():
        yield lambda done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console(out, coloured=takes_colours(out)),
        transient=True,
        auto_refresh=False,
    ) as bars:
        task = bars.add_task(label, total=total)
        yield lambda done: bars.update(task, completed=done, refresh=True)


def _flat(text: str) -> str:
    """As `plain`, but spaces stay as they are."""
    return harmless(re.sub(r"[^\S ]+", " ", text))


def plain(text: object, limit: int = 0) -> str:
    """Text on one line without control characters: names and error messages come from other machines.

    limit: in characters, 0 for none."""
    line = harmless(" ".join(str(text).split()))
    return line if not limit or len(line) <= limit else f"{line[: max(limit - 1, 0)]}…"


def problem_text(problem: Problem) -> str:
    """The errors of an invalid body on one line, each with its place."""
    details = [f"{error.pointer or '/'}: {error.detail.rstrip('.')}" for error in problem.errors]
    return plain("; ".join(details) or problem.detail)


def field_text(value: object, limit: int = 0) -> str:
    """The value of an event's field, as people read it: an error, a list or a plain value."""
    if isinstance(value, dict) and value.keys() == {"code", "message"}:
        return plain(f"{value['code']}: {value['message']}", limit)
    return plain(",".join(map(str, value)) if isinstance(value, list) else value, limit)


def harmless(text: str) -> str:
    """Text with ``·`` for control characters (escape sequences, bidirectional marks) but \\n and tab."""
    if text.isprintable():
        return text
    return "".join(mark if mark in "\n\t" or unicodedata.category(mark)[0] != "C" else "·" for mark in text)


def age(seconds: float | None) -> str:
    """A duration in two units at most: ``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 h 10 min``, ``3 d 4 h``."""
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
