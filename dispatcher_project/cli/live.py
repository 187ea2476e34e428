"""A screen that is redrawn in place until q or Ctrl-C, and left as it was found."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import TextIO

from dispatcher_project.cli.paint import harmless

Draw = Callable[[int, int], list[str]]
"""(columns, rows) → lines."""


def show_live(
    draw: Draw, *, every_seconds: float, out: TextIO | None = None, keys: int | None = None
) -> None:
    """keys: a file descriptor to read keys from; by default stdin, where that is a terminal."""
    out = out or sys.stdout
    if keys is None and sys.stdin.isatty():
        keys = sys.stdin.fileno()
    with _own_screen(out), _single_keys(keys):
        while True:
            size = shutil.get_terminal_size()
            lines = draw(size.columns, size.lines)[: size.lines]
            # each line erases what was behind it, the end what was below: nothing flickers
            out.write("\x1b[H" + "\n".join(f"{harmless(line)}\x1b[K" for line in lines) + "\x1b[J")
            out.flush()
            if _quit_within(every_seconds, keys):
                return


@contextlib.contextmanager
def _own_screen(out: TextIO) -> Iterator[None]:
    """The alternate screen without a cursor; what was there before comes back."""
    out.write("\x1b[?1049h\x1b[?25l\x1b[2J")
    try:
        yield
    finally:
        out.write("\x1b[?25h\x1b[?1049l")
        out.flush()


@contextlib.contextmanager
def _single_keys(keys: int | None) -> Iterator[None]:
    """Keys arrive one by one, unechoed; Ctrl-C stays what it is."""
    if keys is None or not os.isatty(keys):
        yield
        return
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        yield
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


def _quit_within(seconds: float, keys: int | None) -> bool:
    """Waits; True as soon as q was pressed. Any other key draws anew at once."""
    if keys is None:
        time.sleep(seconds)
        return False
    if not select.select([keys], [], [], seconds)[0]:
        return False
    pressed = os.read(keys, 64)
    return not pressed or b"q" in pressed.lower() or pressed == b"\x1b"
