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
from typing import TYPE_CHECKING, Any, TextIO

from django.core.management.base import CommandParser
from django.db import DatabaseError, InterfaceError, connection

from dispatcher_project.cli.command import TerminalCommand, about_database, positive_seconds
from dispatcher_project.cli.overview import overview, overview_screen
from dispatcher_project.cli.screen import console, line
from jobs import ports

if TYPE_CHECKING:
    from rich.console import RenderableType


class Command(TerminalCommand):
    help = (
        "Show servers, queues and the latest failures, live. q or Ctrl-C ends it; a pipe gets one snapshot."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="print one snapshot")
        parser.add_argument(
            "--interval",
            type=positive_seconds,
            default=2.0,
            metavar="SECONDS",
            help="between updates (default 2)",
        )

    def act(self, options: dict[str, Any]) -> int | None:
        if self.as_json:
            self.print_json(overview(ports.production_ports()))
        elif options["once"] or not self.stdout.isatty():
            columns = shutil.get_terminal_size().columns if self.out.isatty() else 0
            self.show(overview_screen(overview(ports.production_ports()), columns=columns))
        else:
            try:
                show_live(self._draw, every_seconds=options["interval"], coloured=self.coloured)
            except KeyboardInterrupt:
                return None  # the usual way to end it
        return None

    def _draw(self, columns: int, rows: int) -> RenderableType:
        """The screen, or a line about the database while it does not answer."""
        try:
            return overview_screen(overview(ports.production_ports()), columns=columns, rows=rows)
        except (DatabaseError, InterfaceError) as error:
            connection.close_if_unusable_or_obsolete()
            return line((f"{about_database(error)}. Trying again; q ends it.", "red"), wraps=True)


def show_live(
    draw: Callable[[int, int], RenderableType],
    *,
    every_seconds: float,
    coloured: bool,
    out: TextIO | None = None,
    keys: int | None = None,
) -> None:
    """Draw again and again until q is pressed.

    Args:
        draw: from the terminal's columns and rows.
        keys: file descriptor to read keys from; default: stdin, if it is a terminal.
    """
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
    """Keys arrive one by one and are not echoed; Ctrl-C still interrupts."""
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
