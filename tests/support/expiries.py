"""Leases that expire, and what became of their jobs."""

from __future__ import annotations

from typing import Any

from gpus.protocol import Lease
from jobs import transitions
from jobs.domain.retry import RetryPolicy
from jobs.models import Job
from jobs.sweeps import expired_leases
from jobs.sweeps.base import SweepCount
from jobs.transitions import End
from tests.support.queue_harness import LEASE_SECONDS, QueueHarness


def expire(queue: QueueHarness) -> SweepCount:
    """Advance the clock past the lease time."""
    queue.clock.advance(LEASE_SECONDS + 0.1)
    count = expired_leases.sweep(queue.ports)
    assert count.failed == 0
    return count


def end(queue: QueueHarness, lease: Lease, **fields: Any) -> None:
    transitions.end_attempt(
        End(
            job_id=lease.job_id,
            attempt_id=lease.attempt_id,
            epoch=lease.epoch,
            slot=lease.slot,
            policy=RetryPolicy(),
            at=queue.clock.now(),
            **fields,
        )
    )


def job_of(lease: Lease) -> Job:
    return Job.objects.get(id=lease.job_id)
