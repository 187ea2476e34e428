"""A screen that is redrawn in place until q or Ctrl-C. rich draws it; it reads no keys, this module does."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from dispatcher_project.cli.screen import console

if TYPE_CHECKING:
    from rich.console import RenderableType


def show_live(
    draw: Callable[[int, int], RenderableType],
    *,
    every_seconds: float,
    coloured: bool,
    out: TextIO | None = None,
    keys: int | None = None,
) -> None:
    """draw: gets the terminal's columns and rows. keys: a file descriptor to read keys from, by default
    of stdin, where that is a terminal."""
    from rich.live import Live

    if keys is None and sys.stdin.isatty():
        keys = sys.stdin.fileno()
    printer = console(out or sys.stdout, coloured=coloured)
    with Live(console=printer, screen=True, auto_refresh=False) as live, _single_keys(keys):
        while True:
            live.update(draw(printer.width, printer.height), refresh=True)
            if _quit_within(every_seconds, keys):
                return


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
    """Wait, and return True as soon as q is pressed. Any other key redraws at once."""
    if keys is None:
        time.sleep(seconds)
        return False
    if not select.select([keys], [], [], seconds)[0]:
        return False
    pressed = os.read(keys, 64)
    return not pressed or b"q" in pressed.lower() or pressed == b"\x1b"
