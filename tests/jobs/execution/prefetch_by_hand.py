"""A worker by hand that prefetches behind every run."""

from __future__ import annotations

import pytest

from jobs.execution import claiming
from jobs.execution.completion import RunEnd
from jobs.execution.slot_loop import SlotLoop
from jobs.execution.worker_state import Claimed, TimeSlice
from jobs.models import Attempt, Job
from tests.jobs.execution.by_hand import GOES_ON, Hands, by_hand
from tests.support.shop import Shop

AHEAD = 100.0
"""Every run here is shorter."""


@pytest.fixture
def hands(shop: Shop) -> Hands:
    return with_followers(shop)


def with_followers(shop: Shop, *answers: object, **how: float) -> Hands:
    hands = by_hand(shop, *answers, **how)
    hands.worker.prefetched.short_seconds = AHEAD
    return hands


def run_first(hands: Hands, turn: TimeSlice = GOES_ON) -> Claimed | None:
    """Runs the first job that waits; what the slot runs next."""
    claimed = claiming.claim_next(hands.worker, "main", "m", None)
    assert claimed is not None
    return SlotLoop(hands.worker, turn).run(claimed)[0]


def run_next(hands: Hands, claimed: Claimed | None, turn: TimeSlice = GOES_ON) -> Claimed | None:
    assert claimed is not None
    return SlotLoop(hands.worker, turn).run(claimed)[0]


def deferred_end(claimed: Claimed) -> RunEnd | None:
    """The run before it, whose end is not released yet."""
    return claimed.ready.prefetch.deferred_end if claimed.ready else None


def tries(job: Job) -> int:
    return Attempt.objects.filter(job=job).count()


def calls(hands: Hands, *names: str) -> list[str]:
    return [name for name, _, _ in hands.leases.calls if name in names]
