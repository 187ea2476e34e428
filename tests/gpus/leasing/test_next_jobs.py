"""The predicted next jobs, compared with the actual order of dispatch."""

from __future__ import annotations

import pytest

from gpus.errors import LeasingUnavailable
from gpus.leasing.scripts import Client
from tests.gpus.leasing.rig import POOL, Rig


@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
def test_next_jobs_are_those_that_are_served_next(rig: Rig, algorithm: str) -> None:
    rig.pool(algorithm, patience=0)
    rig.tenant("heavy", weight=2.0)
    for number in range(6):
        rig.push(f"a{number}", tenant="t1")
        rig.push(f"b{number}", tenant="t2")
        rig.push(f"c{number}", tenant="heavy")
    rig.push("low", priority=8)
    rig.push("high", tenant="t3", priority=1)
    foretold = rig.leases.next_jobs(POOL, 12)
    rig.server(slots=1)
    served = rig.run_all()
    assert foretold[0] == "high"
    assert foretold == served[:12]
    assert rig.leases.next_jobs(POOL, 12) == []


def test_next_jobs_returns_at_most_the_limit_and_changes_nothing(rig: Rig) -> None:
    rig.push("a", "b", "c")
    assert rig.leases.next_jobs(POOL, 2) == ["a", "b"]
    assert rig.leases.next_jobs(POOL, 9) == ["a", "b", "c"]
    rig.server(slots=3)
    assert [rig.must_claim().job_id for _ in range(3)] == ["a", "b", "c"]


def test_lower_bands_come_behind(rig: Rig) -> None:
    rig.push("bulk", priority=9)
    rig.push("normal")
    rig.push("urgent", priority=1)
    assert rig.leases.next_jobs(POOL, 3) == ["urgent", "normal", "bulk"]


def test_next_jobs_skips_parked_tenants(rig: Rig) -> None:
    rig.push("a", tenant="t1")
    rig.push("b", tenant="t2")
    rig.leases.set_paused_tenants(POOL, ["t1"])
    assert rig.leases.next_jobs(POOL, 5) == ["b"]


def test_next_jobs_is_refused_without_a_whole_index(client: Client, fleet: str) -> None:
    with pytest.raises(LeasingUnavailable):
        Rig(client, fleet).leases.next_jobs(POOL, 3)
