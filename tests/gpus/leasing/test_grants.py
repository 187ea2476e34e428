"""The highest band of a tenant: the band of its jobs, and the effect of a change."""

from __future__ import annotations

import pytest

from gpus.protocol import PushOutcome, TenantSpec
from tests.gpus.leasing.rebuild_rig import begin, database_lease
from tests.gpus.leasing.rig import POOL, Rig


def test_a_tenant_without_rules_is_in_the_normal_band(rig: Rig) -> None:
    rig.server()
    rig.tenant("a")
    rig.configured_tenants.add("new")
    rig.push("n1", tenant="new", priority=1, place=0)
    rig.push("a1", tenant="a", priority=3, place=9)
    assert rig.run_all() == ["a1", "n1"]


@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
def test_an_ungranted_priority_still_orders_the_tenants_own_jobs(rig: Rig, algorithm: str) -> None:
    rig.pool(algorithm)
    rig.server()
    rig.tenant("a", band="bulk")
    for job, priority in {"bulk": 9, "normal": 5, "urgent": 2, "most": 1}.items():
        rig.push(job, tenant="a", priority=priority, place=0)
    assert rig.run_all() == ["most", "urgent", "normal", "bulk"]


def test_in_the_granted_band_a_higher_priority_is_only_a_head_start(rig: Rig) -> None:
    rig.server()
    rig.tenant("a", band="normal")
    rig.push("four", tenant="a", priority=4, place=0)
    rig.push("soon", tenant="a", priority=1, place=179)  # three levels, a minute each
    rig.push("late", tenant="a", priority=1, place=181)
    assert rig.run_all() == ["soon", "four", "late"]


@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
def test_an_ungranted_priority_does_not_overtake_other_tenants(rig: Rig, algorithm: str) -> None:
    rig.pool(algorithm)
    rig.server()
    rig.tenant("pushy", band="normal")
    rig.push(*(f"p{i}" for i in range(6)), tenant="pushy", priority=1)
    rig.push(*(f"q{i}" for i in range(6)), tenant="quiet", priority=4)
    order = rig.run_all()
    if algorithm == "fifo":
        assert order[:6] == [f"p{i}" for i in range(6)], "as they came"
    else:
        assert sum(job.startswith("q") for job in order[:6]) == 3


def test_a_fifo_pool_ranks_an_ungranted_priority_like_the_same_level_of_its_band(rig: Rig) -> None:
    rig.pool("fifo")
    rig.server()
    rig.tenant("pushy", band="normal")
    rig.push("first", tenant="quiet", priority=4, place=0)
    rig.push("pushy", tenant="pushy", priority=1, place=1)
    rig.push("five", tenant="quiet", priority=5, place=0)
    assert rig.run_all() == ["first", "pushy", "five"]


@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
def test_a_change_moves_the_tickets_that_wait_and_loses_none(rig: Rig, algorithm: str) -> None:
    rig.pool(algorithm)
    rig.server()
    rig.tenant("a", band="normal")
    rig.push("a1", "a2", tenant="a", priority=1)
    rig.push("a5", tenant="a", priority=5)
    rig.push(*(f"b{i}" for i in range(3)), tenant="b", priority=2)
    rig.tenant("a", band="urgent")
    first = rig.must_claim()
    second = rig.next(first)
    assert {first.job_id, second.job_id} == ({"a1", "b0"} if algorithm == "fair" else {"a1", "a2"})
    rig.tenant("a", band="bulk")
    rig.release(second, gpu_seconds=1.0)
    rig.leases.confirm_ends([second.ref])
    rest = rig.run_all()
    own = [job for job in rest if job.startswith("a")]
    assert rest[-len(own) :] == own, "urgent jobs of others go before what fell into bulk"
    assert sorted([first.job_id, second.job_id, *rest]) == ["a1", "a2", "a5", "b0", "b1", "b2"]


def test_a_ticket_is_found_after_a_change_of_grants(rig: Rig) -> None:
    """Pushing, finding and removing a ticket need no knowledge of the granted band."""
    rig.tenant("a", band="normal")
    rig.push("a1", "a2", tenant="a", priority=1)
    for band in ("urgent", "bulk", "normal"):
        rig.tenant("a", band=band)
        assert rig.in_line("a1")
        assert rig.push("a1", tenant="a", priority=1)[0].outcome is PushOutcome.DUPLICATE
    assert rig.leases.remove(POOL, rig.tickets["a1"])
    assert [rig.in_line(job) for job in ("a1", "a2")] == [False, True]
    assert rig.waiting() == 1


def test_a_grant_costs_the_same_however_much_waits(rig: Rig) -> None:
    def commands(jobs: int, band: str) -> int:
        rig.push(*(f"{band}{i}" for i in range(jobs)), tenant="a", priority=1)
        rig.client.config_resetstat()
        rig.leases.set_tenants([TenantSpec("a", 1.0, band)])
        stats = rig.client.info("commandstats")
        return sum(stat["calls"] for name, stat in stats.items() if "config" not in name)

    rig.tenant("a", band="normal")
    rig.push("a1", tenant="a", priority=1)
    few, _ = commands(1, "urgent"), commands(1, "normal")
    assert commands(400, "urgent") == few


def test_a_paused_tenants_tickets_move_too(rig: Rig) -> None:
    rig.server()
    rig.tenant("a", band="normal")
    rig.push("a1", tenant="a", priority=1)
    rig.push("b1", "b2", tenant="b", priority=4, place=0)
    rig.leases.set_paused_tenants(POOL, ["a"])
    rig.tenant("a", band="urgent")
    assert rig.leases.depth(POOL).parked == {"flux": 1}
    rig.leases.set_paused_tenants(POOL, [])
    assert rig.run_all()[0] == "a1"


def test_charges_of_the_old_band_are_corrected_there(rig: Rig) -> None:
    rig.server(slots=2)
    rig.tenant("a", band="urgent")
    rig.push("a1", tenant="a", priority=1)
    rig.push("b1", tenant="b", priority=1)
    leases = {lease.tenant: lease for lease in (rig.must_claim(), rig.must_claim())}
    rig.tenant("a", band="normal")
    rig.release(leases["a"], gpu_seconds=500.0)
    rig.release(leases["b"], gpu_seconds=1.0)
    rig.leases.confirm_ends([lease.ref for lease in leases.values()])
    rig.push("c1", "c2", tenant="c", priority=5)
    rig.push("a2", tenant="a", priority=1)
    assert "a2" in rig.run_all()[:2], "it owes nothing where it stands now"


# -- during a rebuild -----------------------------------------------------------------------


def test_grants_set_during_a_rebuild_apply_to_tickets_and_leases(rig: Rig) -> None:
    begin(rig)
    rig.server(slots=2)
    lease = database_lease()
    rig.leases.set_tenants([TenantSpec(lease.tenant, 1.0, "bulk"), TenantSpec("b", 1.0, "urgent")])
    rig.configured_tenants |= {lease.tenant, "b"}
    assert rig.leases.restore_lease(lease)
    rig.push("x1", tenant=lease.tenant, priority=1, place=0)
    rig.push("b1", tenant="b", priority=9, place=9)
    rig.push("b2", tenant="b", priority=4, place=9)
    rig.leases.open_generation("one")
    assert rig.must_claim().job_id == "b2"


@pytest.mark.parametrize("band", ["top", "", "URGENT"])
def test_a_band_that_is_none_is_refused(band: str) -> None:
    with pytest.raises(ValueError, match="urgent, normal, bulk"):
        TenantSpec("a", 1.0, band)
