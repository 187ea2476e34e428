from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

import jobs.ports
from dispatcher_project.cli.command import TerminalCommand
from gpus.registry.audit import cli_actor
from gpus.registry.quarantine import free_slot, require_quarantined


class Command(TerminalCommand):
    help = (
        "Says that a slot in quarantine is free: you know that nothing runs there any more. Of a GPU that is "
        "still busy it gives away twice. `quarantine` lists them."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("slot", nargs="+", help="as in box-3/0")
        parser.add_argument("--reason", default="", help="why you know, for the audit")
        self.add_yes(parser)

    def act(self, options: dict[str, Any]) -> int | None:
        ports = jobs.ports.production_ports()
        slots: list[str] = options["slot"]
        for slot in slots:
            require_quarantined(slot, leases=ports.leases)
        self.confirm(f"Is nothing running on {', '.join(slots)}?", options)
        done = []
        for slot in slots:
            freed = free_slot(
                slot,
                by=cli_actor(),
                leases=ports.leases,
                at=ports.clock.now(),
                reason=options["reason"],
            )
            ports.send_wakes(freed.wakes)
            done.append(freed)
            if not self.as_json:
                later = "" if freed.mirrored else "; Redis does not answer: it takes effect once it is back"
                self.print(f"{slot} is free{later}")
        if self.as_json:
            self.print_json(
                {
                    "freed": [
                        {"slot": one.slot, "attempts": one.attempts, "live": one.mirrored} for one in done
                    ]
                }
            )
        return None
