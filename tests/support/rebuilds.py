"""Rebuilds of an index, step by step."""

from __future__ import annotations

from gpus.errors import RunTimedOut
from gpus.protocol import Lease
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.transitions import End
from tests.support.by_process import run_sweep
from tests.support.queue_world import QueueWorld


def rebuild(world: QueueWorld) -> int:
    """Tick until the index is open; return the seconds that it took."""
    for second in range(12):
        run_sweep("generation", world.ports)
        if world.leases.generation() is not None:
            return second
        world.clock.advance(1)
    raise AssertionError("not rebuilt within twelve seconds")


def ended_without_proof(world: QueueWorld) -> Lease:
    world.job()
    lease = world.claim()
    transitions.end_attempt(
        End(
            lease.job_id,
            lease.attempt_id,
            1,
            lease.slot,
            Ending(RunTimedOut(), suspect=True),
            RetryPolicy(),
            world.clock.now(),
        )
    )
    return lease
