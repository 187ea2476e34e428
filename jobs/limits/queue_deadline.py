"""How long a job may wait in all: the shorter of what its model and its tenant allow, else the setting.

The `deadlines` sweep ends what waited longer, with `max_queued_exceeded`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings

from gpus.registry import queries as registry
from jobs.limits.tenant_limits import limits_of
from jobs.models import Job


def max_queued_seconds(tenant_id: int, model: str) -> float | None:
    """Seconds; None: for ever."""
    spec = registry.model_spec(model)
    own = (limits_of(tenant_id).max_queued_seconds, spec.max_queued_seconds if spec else None)
    chosen = [seconds for seconds in own if seconds is not None]
    return min(chosen) if chosen else settings.DISPATCHER.max_queued_seconds or None


def queue_deadline(tenant_id: int, model: str, start: datetime) -> datetime | None:
    """start: when the job begins to wait."""
    seconds = max_queued_seconds(tenant_id, model)
    return None if seconds is None else start + timedelta(seconds=seconds)


def queue_deadline_of(job: Job, start: datetime) -> datetime | None:
    return queue_deadline(job.tenant_id, job.model, start)
