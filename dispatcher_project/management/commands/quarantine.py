from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.utils import timezone

from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.paint import Paint, age, plain, table
from gpus.models import QuarantinedSlot
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


def quarantine_lines(rows: Sequence[QuarantinedSlot], now: datetime, paint: Paint) -> list[str]:
    cells = [
        (
            f"{row.server_id}/{row.slot}",
            age((now - row.since).total_seconds()),
            plain(row.reason, 30),
            row.model or "–",
            row.job_id or "–",
            f"in {age(max(0.0, (row.until - now).total_seconds()))}",
            paint("no health endpoint", "dim") if row.server.tells_health is False else "",
        )
        for row in rows
    ]
    return table(("slot", "for", "reason", "model", "job", "free at the latest", ""), cells, paint)
