from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.screen import age, line, table
from gpus.models import QuarantinedSlot
from gpus.registry.quarantine import open_quarantines, quarantine_json

if TYPE_CHECKING:
    from rich.table import Table


class Command(TerminalCommand):
    help = (
        "List quarantined slots: their GPU may still be busy with a run that no worker controls. "
        "`free SERVER/SLOT` declares one free."
    )

    def act(self, options: dict[str, Any]) -> int | None:
        rows = open_quarantines()
        if self.as_json:
            self.print_json({"results": [quarantine_json(row) for row in rows]})
        elif rows:
            self.show(quarantine_table(rows, timezone.now()))
        else:
            self.print("no slot is in quarantine")
        return None


def quarantine_table(rows: Sequence[QuarantinedSlot], now: datetime) -> Table:
    cells = [
        (
            f"{row.server_id}/{row.slot}",
            age((now - row.since).total_seconds()),
            row.reason,
            row.model or "–",
            row.job_id or "–",
            f"in {age(max(0.0, (row.until - now).total_seconds()))}",
            line(("no health endpoint", "dim")) if row.server.tells_health is False else "",
        )
        for row in rows
    ]
    heads = ("slot", "for", "reason", "model", "job", "free at the latest", "")
    return table(heads, cells, gives_way=("reason", ""))
