"""`quarantine`: slots that may still be busy with a lost run, as lines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from dispatcher_project.cli.paint import Paint, age, plain, table
from gpus.models import QuarantinedSlot


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
