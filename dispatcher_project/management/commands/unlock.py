from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from dispatcher_project.terminal.command import TerminalCommand
from gpus.client_network import network_of
from gpus.services.audit import cli_actor, record
from jobs.services.sign_in import unlock


class Command(TerminalCommand):
    help = "Sign-ins to the admin that are refused after failures may be tried again at once."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("address", nargs="?", help="only from this address (default: from all)")

    def act(self, options: dict[str, Any]) -> int | None:
        address = options["address"]
        count = unlock(address)
        record(
            cli_actor(), "unlock_sign_in", f"address:{network_of(address) if address else '*'}", rows=count
        )
        if self.as_json:
            self.tell({"forgotten": count})
        else:
            self.say(f"{count} forgotten")
        return None
