from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from dispatcher_project.cli.command import TerminalCommand
from foundation.network import is_address
from foundation.texts import counted
from gpus.registry.audit import cli_actor
from jobs.operations.sign_in import unlock


class Command(TerminalCommand):
    help = "Allow sign-ins to the admin that are refused after failures, at once."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("address", nargs="?", help="IP address; only sign-ins from there (default: all)")

    def act(self, options: dict[str, Any]) -> int | None:
        address = options["address"]
        if address is not None and not is_address(address):
            raise CommandError(f"{address!r} is not an IP address")
        count = unlock(address, by=cli_actor())
        text = f"failed sign-ins of {counted(count, 'account')} forgotten" if count else "no failed sign-ins"
        self.report({"forgotten": count}, f"{text} from {address}" if address else text)
        return None
