"""The row that keeps a suspect slot out of use."""

from __future__ import annotations

from datetime import datetime, timedelta

from gpus.models import QuarantinedSlot, Server
from gpus.protocol import split_slot


def quarantine_slot(
    slot: str,
    *,
    attempt_id: str,
    job_id: str,
    model: str,
    reason: str,
    at: datetime,
    run_limit_seconds: float,
    refused_url: str = "",
) -> None:
    """Writes the row that keeps a slot out of use until this attempt is proven gone; once per attempt.
    refused_url: where nothing listened of its server then."""
    server, index = split_slot(slot)
    if not Server.objects.filter(name=server).exists():
        return
    QuarantinedSlot.objects.bulk_create(
        [
            QuarantinedSlot(
                server_id=server,
                slot=index,
                attempt_id=attempt_id,
                job_id=job_id,
                model=model,
                reason=reason[:200],
                since=at,
                until=at + timedelta(seconds=run_limit_seconds),
                refused_at=at if refused_url else None,
                refused_url=refused_url or None,
            )
        ],
        ignore_conflicts=True,
    )
