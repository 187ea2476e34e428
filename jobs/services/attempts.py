"""A GPU server pushes a result for an attempt: stored first, then its holder is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.models import PushedResult
from jobs.services.ports import Ports
from jobs.services.push_tokens import attempt_of_token


def accept_push(job_id: str, token: str, body: Mapping[str, Any], *, ports: Ports) -> bool:
    """False: the token is not of this dispatcher. Durable before it returns; a second push of the same
    attempt changes nothing. A push may be earlier than its attempt's row, or later than its end: only the
    holder of the attempt finishes it, so neither does harm."""
    attempt_id = attempt_of_token(token)
    if attempt_id is None:
        return False
    PushedResult.objects.get_or_create(
        attempt_id=attempt_id,
        defaults={"job_id": job_id, "body": dict(body), "received_at": ports.clock.now()},
    )
    ports.announce([job_id])
    return True
