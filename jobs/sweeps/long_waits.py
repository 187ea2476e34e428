"""Jobs whose total waiting time exceeds `max_queued_seconds` of the tenant, the model or the settings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from operator import attrgetter

from foundation.database import statements
from foundation.database.statements import value
from jobs.domain.errors import MAX_QUEUED_EXCEEDED
from jobs.limits.submit_limits import queue_deadline
from jobs.models import Attempt, Job
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, in_batches, sweep_rows
from jobs.sweeps.deadlines import end_jobs, waiting_and

PERIOD_SECONDS = 10.0

_past_queue_deadline = statements.Read(
    lambda: waiting_and(
        queue_deadline_at__isnull=False, queue_deadline_at__lte=value(Job, "queue_deadline_at", "now")
    )
)


def sweep(ports: Ports) -> SweepCount:
    """repaired: jobs that ended FAILED with `max_queued_exceeded`, or whose queue deadline was reset."""
    now = ports.clock.now()
    count = SweepCount()
    for jobs in in_batches(_past_queue_deadline(now=now)):
        retried = [job for job in jobs if _is_of_earlier_round(job)]
        count += sweep_rows("long_waits", retried, partial(_reset_queue_deadline, ports=ports))
        ended = [job for job in jobs if job not in retried]
        count += end_jobs("long_waits", ended, attrgetter("queue_deadline_at"), ports, _reason)
    return count


def _is_of_earlier_round(job: Job) -> bool:
    """Return True if the queue deadline is older than the current round: versions without
    `max_queued_seconds` don't update it when they retry a dead letter."""
    return job.round > 1 and job.queue_deadline_at is not None and job.queue_deadline_at <= _waits_since(job)


def _reset_queue_deadline(job: Job, ports: Ports) -> bool:
    stale = Job.objects.filter(id=job.id, queue_deadline_at=job.queue_deadline_at)
    deadline = queue_deadline(job.tenant_id, job.model, _waits_since(job), ports)
    return bool(stale.update(queue_deadline_at=deadline))


def _waits_since(job: Job) -> datetime:
    return datetime.fromtimestamp(job.place_us / 1e6, UTC)


def _reason(job: Job) -> tuple[str, str]:
    seconds = _own_limit_seconds(job)
    limit = f" of {seconds:.1f}".removesuffix(".0") + " s" if seconds > 0 else ""
    return MAX_QUEUED_EXCEEDED, f"The job waited longer than its limit{limit} (max_queued_seconds)."


def _own_limit_seconds(job: Job) -> float:
    """Return the limit in force when the job began to wait; model, tenant or settings may have changed since.

    The time of its runs, by which `queue_deadline_at` was postponed, is subtracted.
    """
    assert job.queue_deadline_at is not None
    begin = _waits_since(job) if job.round > 1 else job.run_at or job.created_at
    ran = timedelta()
    if job.attempts_made:
        runs = Attempt.objects.filter(job=job, round=job.round, finished_at__isnull=False)
        for started_at, finished_at in runs.values_list("started_at", "finished_at"):
            ran += max((finished_at or started_at) - started_at, timedelta())
    return (job.queue_deadline_at - begin - ran).total_seconds()
