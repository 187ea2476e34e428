"""An index that was lost while two leases were held."""

from __future__ import annotations

import pytest

from gpus.protocol import Lease
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness


def lose_index(harness: LeaseHarness) -> None:
    """As FLUSHALL does, without hurting other tests on the same server."""
    harness.client.delete(*(harness.prefix + name for name in harness.all_keys()))


def begin(harness: LeaseHarness) -> None:
    assert harness.leases.begin_rebuild("one")
    assert harness.leases.wipe("one")


@pytest.fixture
def lost(harness: LeaseHarness) -> tuple[LeaseHarness, Lease, Lease]:
    """An index that was lost while one job ran and another one's end was not committed yet."""
    harness.server(slots=2)
    harness.push("running", "ending")
    running, ending = harness.must_claim(), harness.must_claim()
    harness.release(ending)
    lose_index(harness)
    return harness, running, ending


def database_lease(attempt: str = "att", *, slot: str = "s1/0", job: str = "job", at_s: int = 0) -> Lease:
    """As the rebuild makes it from a live attempt's row."""
    at_ms = 1_700_000_000_000 + at_s * 1000
    return Lease(POOL, slot, job, attempt, 1, "flux", "t1", 5, at_ms * 1000, at_ms, 0.0)
