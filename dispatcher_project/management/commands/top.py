from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandParser
from django.db import DatabaseError, InterfaceError, connection

from dispatcher_project.cli.command import TerminalCommand, about_database, positive_seconds
from dispatcher_project.cli.live import show_live
from dispatcher_project.cli.overview import overview
from dispatcher_project.cli.overview_text import overview_screen
from dispatcher_project.cli.screen import line
from jobs import ports

if TYPE_CHECKING:
    from rich.console import RenderableType


class Command(TerminalCommand):
    help = "The fleet, the queues and the last failures, live; q or Ctrl-C ends it. Piped: one snapshot."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="one snapshot")
        parser.add_argument("--interval", type=positive_seconds, default=2.0, metavar="SECONDS")

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
                return None  # that is how one leaves it
        return None

    def _draw(self, columns: int, rows: int) -> RenderableType:
        """While the database is away the screen says so, and goes on when it is back."""
        try:
            return overview_screen(overview(ports.production_ports()), columns=columns, rows=rows)
        except (DatabaseError, InterfaceError) as error:
            connection.close_if_unusable_or_obsolete()
            return line((f"{about_database(error)}. Trying again; q ends.", "red"), wraps=True)
