from __future__ import annotations

from typing import Any

from django.utils import timezone

from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.suspects import quarantine_lines
from gpus.registry.quarantine import open_quarantines, quarantine_json


class Command(TerminalCommand):
    help = (
        "Slots whose GPU may still be busy with a run that nobody controls; `free SERVER/SLOT` says that one "
        "is free."
    )

    def act(self, options: dict[str, Any]) -> int | None:
        rows = open_quarantines()
        if self.as_json:
            self.tell({"results": [quarantine_json(row) for row in rows]})
        elif rows:
            self.say(*quarantine_lines(rows, timezone.now(), self.paint))
        else:
            self.say("no slot is in quarantine")
        return None
