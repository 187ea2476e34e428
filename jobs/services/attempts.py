"""A GPU server pushes a result for an attempt: stored first, then its holder is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction

from gpus.models import prepared
from gpus.runners.answers import DONE, FAILED
from jobs.models import PushedResult
from jobs.services.ports import Ports
from jobs.services.push_tokens import attempt_of_token

pushed_body = prepared.Read(
    lambda: PushedResult.objects.filter(attempt_id=prepared.value(PushedResult, "attempt_id")).values_list(
        "body", flat=True
    )
)


def accept_push(job_id: str, token: str, body: Mapping[str, Any], *, ports: Ports) -> bool:
    """False: the token is not of this dispatcher. Durable before it returns; the first final
    push of an attempt stays. A push may be earlier than its attempt's row, or later than its end: only the
    holder of the attempt finishes it, so neither does harm."""
    attempt_id = attempt_of_token(token)
    if attempt_id is None:
        return False
    pushed = PushedResult(
        attempt_id=attempt_id, job_id=job_id, body=dict(body), received_at=ports.clock.now()
    )
    with transaction.atomic():
        is_first = prepared.insert(pushed, ignore_conflicts=True)
    if not is_first and _is_final(body) and not _is_final(pushed_body.first(attempt_id=attempt_id) or {}):
        PushedResult.objects.filter(attempt_id=attempt_id).update(body=dict(body))
    ports.announce([job_id])
    return True


def _is_final(body: Mapping[str, Any]) -> bool:
    return str(body.get("status", "")).lower() in DONE | FAILED
