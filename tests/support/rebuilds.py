"""Rebuilds of an index, step by step."""

from __future__ import annotations

from gpus.errors import RunTimedOut
from gpus.protocol import Lease
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.transitions import End
from tests.support.by_process import run_sweep
from tests.support.queue_harness import QueueHarness


def rebuild(queue: QueueHarness) -> int:
    """Tick until the index is open; return the seconds that it took."""
    for second in range(12):
        run_sweep("generation", queue.ports)
        if queue.leases.generation() is not None:
            return second
        queue.clock.advance(1)
    raise AssertionError("not rebuilt within twelve seconds")


def ended_without_proof(queue: QueueHarness) -> Lease:
    queue.job()
    lease = queue.claim()
    transitions.end_attempt(
        End(
            lease.job_id,
            lease.attempt_id,
            1,
            lease.slot,
            Ending(RunTimedOut(), suspect=True),
            RetryPolicy(),
            queue.clock.now(),
        )
    )
    return lease
