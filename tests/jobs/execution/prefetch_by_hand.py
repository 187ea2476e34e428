"""A worker by hand that prefetches behind every run."""

from __future__ import annotations

import pytest

from jobs.execution.completion import RunEnd
from jobs.execution.prefetch import Ready
from jobs.execution.slot_loop import TimeSlice
from jobs.models import Attempt, Job
from tests.jobs.execution.by_hand import GOES_ON, Hands, by_hand
from tests.support.worker_harness import WorkerHarness

AHEAD = 100.0
"""Every run here is shorter."""


@pytest.fixture
def hands(harness: WorkerHarness) -> Hands:
    return with_followers(harness)


def with_followers(harness: WorkerHarness, *answers: object, **how: float) -> Hands:
    hands = by_hand(harness, *answers, **how)
    hands.worker.prefetch.short_seconds = AHEAD
    return hands


def run_first(hands: Hands, turn: TimeSlice = GOES_ON) -> Ready | None:
    """Runs the first job that waits; what the slot runs next."""
    claimed = hands.worker.claims.claim_next("main", "m", None)
    assert claimed is not None
    return run_next(hands, hands.loop.prepare(claimed), turn)


def run_next(hands: Hands, ready: Ready | None, turn: TimeSlice = GOES_ON) -> Ready | None:
    assert ready is not None
    hands.loop._time_slice = turn
    return hands.loop.run(ready)[0]


def deferred_end(ready: Ready) -> RunEnd | None:
    """The run before it, whose end is not released yet."""
    return ready.turn.deferred_end


def tries(job: Job) -> int:
    return Attempt.objects.filter(job=job).count()


def calls(hands: Hands, *names: str) -> list[str]:
    return [name for name, _, _ in hands.leases.calls if name in names]
