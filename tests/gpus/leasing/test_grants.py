"""The highest band of a tenant: the band of its jobs, and the effect of a change."""

from __future__ import annotations

import pytest

from gpus.protocol import PushOutcome, TenantSpec
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness
from tests.gpus.leasing.rebuild_harness import begin, database_lease


def test_a_tenant_without_rules_is_in_the_normal_band(harness: LeaseHarness) -> None:
    harness.server()
    harness.tenant("a")
    harness.configured_tenants.add("new")
    harness.push("n1", tenant="new", priority=1, place=0)
    harness.push("a1", tenant="a", priority=3, place=9)
    assert harness.run_all() == ["a1", "n1"]


@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
def test_an_ungranted_priority_still_orders_the_tenants_own_jobs(
    harness: LeaseHarness, algorithm: str
) -> None:
    harness.pool(algorithm)
    harness.server()
    harness.tenant("a", band="bulk")
    for job, priority in {"bulk": 9, "normal": 5, "urgent": 2, "most": 1}.items():
        harness.push(job, tenant="a", priority=priority, place=0)
    assert harness.run_all() == ["most", "urgent", "normal", "bulk"]


def test_in_the_granted_band_a_higher_priority_is_only_a_head_start(harness: LeaseHarness) -> None:
    harness.server()
    harness.tenant("a", band="normal")
    harness.push("four", tenant="a", priority=4, place=0)
    harness.push("soon", tenant="a", priority=1, place=179)  # three levels, a minute each
    harness.push("late", tenant="a", priority=1, place=181)
    assert harness.run_all() == ["soon", "four", "late"]


@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
def test_an_ungranted_priority_does_not_overtake_other_tenants(harness: LeaseHarness, algorithm: str) -> None:
    harness.pool(algorithm)
    harness.server()
    harness.tenant("pushy", band="normal")
    harness.push(*(f"p{i}" for i in range(6)), tenant="pushy", priority=1)
    harness.push(*(f"q{i}" for i in range(6)), tenant="quiet", priority=4)
    order = harness.run_all()
    if algorithm == "fifo":
        assert order[:6] == [f"p{i}" for i in range(6)], "as they came"
    else:
        assert sum(job.startswith("q") for job in order[:6]) == 3


def test_a_fifo_pool_ranks_an_ungranted_priority_like_the_same_level_of_its_band(
    harness: LeaseHarness,
) -> None:
    harness.pool("fifo")
    harness.server()
    harness.tenant("pushy", band="normal")
    harness.push("first", tenant="quiet", priority=4, place=0)
    harness.push("pushy", tenant="pushy", priority=1, place=1)
    harness.push("five", tenant="quiet", priority=5, place=0)
    assert harness.run_all() == ["first", "pushy", "five"]


@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
def test_a_change_moves_the_tickets_that_wait_and_loses_none(harness: LeaseHarness, algorithm: str) -> None:
    harness.pool(algorithm)
    harness.server()
    harness.tenant("a", band="normal")
    harness.push("a1", "a2", tenant="a", priority=1)
    harness.push("a5", tenant="a", priority=5)
    harness.push(*(f"b{i}" for i in range(3)), tenant="b", priority=2)
    harness.tenant("a", band="urgent")
    first = harness.must_claim()
    second = harness.next(first)
    assert {first.job_id, second.job_id} == ({"a1", "b0"} if algorithm == "fair" else {"a1", "a2"})
    harness.tenant("a", band="bulk")
    harness.release(second, gpu_seconds=1.0)
    harness.leases.confirm_ends([second.ref])
    rest = harness.run_all()
    own = [job for job in rest if job.startswith("a")]
    assert rest[-len(own) :] == own, "urgent jobs of others go before what fell into bulk"
    assert sorted([first.job_id, second.job_id, *rest]) == ["a1", "a2", "a5", "b0", "b1", "b2"]


def test_a_ticket_is_found_after_a_change_of_grants(harness: LeaseHarness) -> None:
    """Pushing, finding and removing a ticket need no knowledge of the granted band."""
    harness.tenant("a", band="normal")
    harness.push("a1", "a2", tenant="a", priority=1)
    for band in ("urgent", "bulk", "normal"):
        harness.tenant("a", band=band)
        assert harness.in_line("a1")
        assert harness.push("a1", tenant="a", priority=1)[0].outcome is PushOutcome.DUPLICATE
    assert harness.leases.remove(POOL, harness.tickets["a1"])
    assert [harness.in_line(job) for job in ("a1", "a2")] == [False, True]
    assert harness.waiting() == 1


def test_a_grant_costs_the_same_however_much_waits(harness: LeaseHarness) -> None:
    def commands(jobs: int, band: str) -> int:
        harness.push(*(f"{band}{i}" for i in range(jobs)), tenant="a", priority=1)
        harness.client.config_resetstat()
        harness.leases.set_tenants([TenantSpec("a", 1.0, band)])
        stats = harness.client.info("commandstats")
        return sum(stat["calls"] for name, stat in stats.items() if "config" not in name)

    harness.tenant("a", band="normal")
    harness.push("a1", tenant="a", priority=1)
    few, _ = commands(1, "urgent"), commands(1, "normal")
    assert commands(400, "urgent") == few


def test_a_paused_tenants_tickets_move_too(harness: LeaseHarness) -> None:
    harness.server()
    harness.tenant("a", band="normal")
    harness.push("a1", tenant="a", priority=1)
    harness.push("b1", "b2", tenant="b", priority=4, place=0)
    harness.leases.set_paused_tenants(POOL, ["a"])
    harness.tenant("a", band="urgent")
    assert harness.leases.depth(POOL).parked == {"flux": 1}
    harness.leases.set_paused_tenants(POOL, [])
    assert harness.run_all()[0] == "a1"


def test_charges_of_the_old_band_are_corrected_there(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.tenant("a", band="urgent")
    harness.push("a1", tenant="a", priority=1)
    harness.push("b1", tenant="b", priority=1)
    leases = {lease.tenant: lease for lease in (harness.must_claim(), harness.must_claim())}
    harness.tenant("a", band="normal")
    harness.release(leases["a"], gpu_seconds=500.0)
    harness.release(leases["b"], gpu_seconds=1.0)
    harness.leases.confirm_ends([lease.ref for lease in leases.values()])
    harness.push("c1", "c2", tenant="c", priority=5)
    harness.push("a2", tenant="a", priority=1)
    assert "a2" in harness.run_all()[:2], "it owes nothing where it stands now"


# -- during a rebuild -----------------------------------------------------------------------


def test_grants_set_during_a_rebuild_apply_to_tickets_and_leases(harness: LeaseHarness) -> None:
    begin(harness)
    harness.server(slots=2)
    lease = database_lease()
    harness.leases.set_tenants([TenantSpec(lease.tenant, 1.0, "bulk"), TenantSpec("b", 1.0, "urgent")])
    harness.configured_tenants |= {lease.tenant, "b"}
    assert harness.leases.restore_lease(lease)
    harness.push("x1", tenant=lease.tenant, priority=1, place=0)
    harness.push("b1", tenant="b", priority=9, place=9)
    harness.push("b2", tenant="b", priority=4, place=9)
    harness.leases.open_generation("one")
    assert harness.must_claim().job_id == "b2"


@pytest.mark.parametrize("band", ["top", "", "URGENT"])
def test_a_band_that_is_none_is_refused(band: str) -> None:
    with pytest.raises(ValueError, match="urgent, normal, bulk"):
        TenantSpec("a", 1.0, band)
