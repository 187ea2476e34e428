"""The predicted next jobs, compared with the actual order of dispatch."""

from __future__ import annotations

import pytest

from gpus.errors import LeasingUnavailable
from gpus.leasing.scripts import Client
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness


@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
def test_next_jobs_are_those_that_are_served_next(harness: LeaseHarness, algorithm: str) -> None:
    harness.pool(algorithm, patience=0)
    harness.tenant("heavy", weight=2.0)
    for number in range(6):
        harness.push(f"a{number}", tenant="t1")
        harness.push(f"b{number}", tenant="t2")
        harness.push(f"c{number}", tenant="heavy")
    harness.push("low", priority=8)
    harness.push("high", tenant="t3", priority=1)
    foretold = harness.leases.next_jobs(POOL, 12)
    harness.server(slots=1)
    served = harness.run_all()
    assert foretold[0] == "high"
    assert foretold == served[:12]
    assert harness.leases.next_jobs(POOL, 12) == []


def test_next_jobs_returns_at_most_the_limit_and_changes_nothing(harness: LeaseHarness) -> None:
    harness.push("a", "b", "c")
    assert harness.leases.next_jobs(POOL, 2) == ["a", "b"]
    assert harness.leases.next_jobs(POOL, 9) == ["a", "b", "c"]
    harness.server(slots=3)
    assert [harness.must_claim().job_id for _ in range(3)] == ["a", "b", "c"]


def test_lower_bands_come_behind(harness: LeaseHarness) -> None:
    harness.push("bulk", priority=9)
    harness.push("normal")
    harness.push("urgent", priority=1)
    assert harness.leases.next_jobs(POOL, 3) == ["urgent", "normal", "bulk"]


def test_next_jobs_skips_parked_tenants(harness: LeaseHarness) -> None:
    harness.push("a", tenant="t1")
    harness.push("b", tenant="t2")
    harness.leases.set_paused_tenants(POOL, ["t1"])
    assert harness.leases.next_jobs(POOL, 5) == ["b"]


def test_next_jobs_is_refused_without_a_whole_index(client: Client, fleet: str) -> None:
    with pytest.raises(LeasingUnavailable):
        LeaseHarness(client, fleet).leases.next_jobs(POOL, 3)
