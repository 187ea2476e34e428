from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

import jobs.ports
from dispatcher_project.cli.command import TerminalCommand
from gpus.registry.audit import cli_actor
from gpus.registry.quarantine import free_slot, require_quarantined


class Command(TerminalCommand):
    help = (
        "Declare quarantined slots free, when you know that no run is left on their GPU: a GPU that is still "
        "busy would get a second job. `quarantine` lists the slots."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("slot", nargs="+", metavar="SLOT", help="SERVER/INDEX, such as box-3/0")
        parser.add_argument("--reason", default="", help="how you know, for the audit log")
        self.add_yes(parser)

    def act(self, options: dict[str, Any]) -> int | None:
        ports = jobs.ports.production_ports()
        slots: list[str] = options["slot"]
        for slot in slots:
            require_quarantined(slot, leases=ports.leases)
        self.confirm(f"Is nothing running on {', '.join(slots)}?", options)
        freed_slots = []
        for slot in slots:
            freed = free_slot(
                slot,
                by=cli_actor(),
                leases=ports.leases,
                at=ports.clock.now(),
                reason=options["reason"],
            )
            ports.send_wakes(freed.wakes)
            freed_slots.append(freed)
            if not self.as_json:
                later = (
                    "" if freed.mirrored else "; Redis does not answer: it takes effect once Redis is back"
                )
                self.print(f"{slot} is free{later}")
        if self.as_json:
            self.print_json(
                {
                    "freed": [
                        {"slot": one.slot, "attempts": one.attempts, "live": one.mirrored}
                        for one in freed_slots
                    ]
                }
            )
        return None
