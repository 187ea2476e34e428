"""Slots whose quarantine ends."""

from __future__ import annotations

from gpus.errors import RunTimedOut
from gpus.protocol import Lease, ReleaseMode
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.transitions import End
from tests.support.queue_harness import QueueHarness

LIMIT = 600.0


def quarantine_slot(queue: QueueHarness, lease: Lease, *, refused_url: str = "") -> Lease:
    queue.release(lease, ReleaseMode.SUSPECT)
    ending = Ending(RunTimedOut(), suspect=True)
    transitions.end_attempt(
        End(
            lease.job_id,
            lease.attempt_id,
            1,
            lease.slot,
            ending,
            RetryPolicy(),
            queue.clock.now(),
            run_limit_seconds=LIMIT,
            refused_url=refused_url,
        )
    )
    queue.leases.confirm_ends([lease.ref])
    queue.clock.advance(2)
    return lease
