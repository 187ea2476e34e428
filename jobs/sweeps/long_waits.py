"""Forgotten jobs: they waited longer in all than `max_queued_seconds` of tenant, model or settings allows."""

from __future__ import annotations

from gpus.models import prepared
from gpus.models.prepared import value
from jobs.errors import MAX_QUEUED_EXCEEDED
from jobs.models import Job
from jobs.services.ports import Ports
from jobs.services.queue_deadline import max_queued_seconds
from jobs.sweeps.base import SweepCount, in_batches
from jobs.sweeps.deadlines import end_jobs, waiting_and

PERIOD_SECONDS = 10.0

_past_queue_deadline = prepared.Read(
    lambda: waiting_and(
        queue_deadline_at__isnull=False, queue_deadline_at__lte=value(Job, "queue_deadline_at", "now")
    )
)


def sweep(ports: Ports) -> SweepCount:
    """repaired: jobs ended FAILED, `max_queued_exceeded`."""
    now = ports.clock.now()
    count = SweepCount()
    for jobs in in_batches(_past_queue_deadline(now=now)):
        count += end_jobs("long_waits", jobs, now, ports, _reason)
    return count


def _reason(job: Job) -> tuple[str, str]:
    seconds = max_queued_seconds(job.tenant_id, job.model)
    limit = "" if seconds is None else f" of {seconds:g} s"
    return MAX_QUEUED_EXCEEDED, f"It waited longer than its limit{limit} (max_queued_seconds)."
