"""Forgotten jobs: they waited longer in all than `max_queued_seconds` of tenant, model or settings allows."""

from __future__ import annotations

from datetime import UTC, datetime
from operator import attrgetter

from gpus.models import prepared
from gpus.models.prepared import value
from jobs.errors import MAX_QUEUED_EXCEEDED
from jobs.models import Job
from jobs.services.ports import Ports
from jobs.services.queue_deadline import max_queued_seconds, queue_deadline_of
from jobs.sweeps.base import SweepCount, in_batches, sweep_rows
from jobs.sweeps.deadlines import end_jobs, waiting_and

PERIOD_SECONDS = 10.0

_past_queue_deadline = prepared.Read(
    lambda: waiting_and(
        queue_deadline_at__isnull=False, queue_deadline_at__lte=value(Job, "queue_deadline_at", "now")
    )
)


def sweep(ports: Ports) -> SweepCount:
    """repaired: jobs ended FAILED, `max_queued_exceeded`, or whose longest wait was set anew."""
    now = ports.clock.now()
    count = SweepCount()
    for jobs in in_batches(_past_queue_deadline(now=now)):
        retried = [job for job in jobs if _was_set_before_it_waited(job)]
        count += sweep_rows("long_waits", retried, _set_anew)
        ended = [job for job in jobs if job not in retried]
        count += end_jobs("long_waits", ended, attrgetter("queue_deadline_at"), ports, _reason)
    return count


def _was_set_before_it_waited(job: Job) -> bool:
    """Processes that know of no longest wait leave it as it was when they retry a dead letter."""
    return job.round > 1 and job.queue_deadline_at is not None and job.queue_deadline_at <= _waits_since(job)


def _set_anew(job: Job) -> bool:
    stale = Job.objects.filter(id=job.id, queue_deadline_at=job.queue_deadline_at)
    return bool(stale.update(queue_deadline_at=queue_deadline_of(job, _waits_since(job))))


def _waits_since(job: Job) -> datetime:
    return datetime.fromtimestamp(job.place_us / 1e6, UTC)


def _reason(job: Job) -> tuple[str, str]:
    seconds = max_queued_seconds(job.tenant_id, job.model)
    limit = "" if seconds is None else f" of {seconds:g} s"
    return MAX_QUEUED_EXCEEDED, f"It waited longer than its limit{limit} (max_queued_seconds)."
