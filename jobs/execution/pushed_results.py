"""A GPU server pushes a result for an attempt: stored first, then its holder is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from foundation.database import statements
from jobs.execution.push_admission import count_push, is_final
from jobs.models import PushedResult
from jobs.ports import Ports

pushed_body = statements.Read(
    lambda: PushedResult.objects.filter(attempt_id=statements.value(PushedResult, "attempt_id")).values_list(
        "body", flat=True
    )
)


def accept_push(job_id: str, attempt_id: str, body: Mapping[str, Any], size: int, *, ports: Ports) -> None:
    """For an admitted push (`push_admission.admit_push`). Durable before it returns; the first final push of
    an attempt stays. Only the holder of the attempt finishes it. size: of the body as sent, bytes."""
    pushed = PushedResult(
        attempt_id=attempt_id,
        job_id=job_id,
        body=dict(body),
        received_at=ports.clock.now(),
        pushes=1,
        pushed_bytes=size,
    )
    with transaction.atomic():
        is_first = statements.insert(pushed, ignore_conflicts=True)
    if not is_first:
        count_push(attempt_id, size)
        if is_final(body.get("status")) and not is_final(
            (pushed_body.first(attempt_id=attempt_id) or {}).get("status")
        ):
            PushedResult.objects.filter(attempt_id=attempt_id).update(body=dict(body))
    ports.announce([job_id])
