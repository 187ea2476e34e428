"""Paused tenants: their tickets keep their places, are not leased, and delay no other tenant."""

from __future__ import annotations

from collections import Counter

import pytest

from gpus.protocol import PushOutcome, Ticket
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness, counts
from tests.gpus.leasing.rebuild_harness import begin, database_lease


def test_a_paused_tenants_tickets_are_not_leased(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("a1", tenant="a", place=0)
    harness.push("b1", tenant="b", place=1)
    harness.leases.set_paused_tenants(POOL, ["a"])
    assert harness.run_all() == ["b1"]
    assert harness.in_line("a1")


@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
def test_a_released_tenant_keeps_its_places(harness: LeaseHarness, algorithm: str) -> None:
    harness.pool(algorithm)
    harness.server()
    harness.push("late", tenant="a", place=20)
    harness.push("early", tenant="a", place=10, model="flux")
    harness.push("first", tenant="b", place=0)
    harness.leases.set_paused_tenants(POOL, ["a"])
    harness.push("middle", tenant="a", place=15)
    harness.leases.set_paused_tenants(POOL, [])
    order = harness.run_all()
    assert [job for job in order if job != "first"] == ["early", "middle", "late"]
    assert order[0] == "first" or algorithm == "fair"


def test_each_call_sets_the_whole_list_of_tenants(harness: LeaseHarness) -> None:
    harness.server()
    for tenant in "abc":
        harness.push(f"{tenant}1", tenant=tenant)
    harness.leases.set_paused_tenants(POOL, ["a", "b"])
    harness.leases.set_paused_tenants(POOL, ["a", "b"])
    harness.leases.set_paused_tenants(POOL, ["b", "c"])
    assert harness.run_all() == ["a1"]
    harness.leases.set_paused_tenants(POOL, [])
    assert sorted(harness.run_all()) == ["b1", "c1"]


def test_a_pause_is_no_credit(harness: LeaseHarness) -> None:
    """As for one that comes back from idle: turns are taken from now on."""
    harness.server()
    harness.push(*(f"z{i}" for i in range(20)), tenant="z")
    harness.push(*(f"b{i}" for i in range(20)), tenant="b")
    harness.leases.set_paused_tenants(POOL, ["z"])
    lease = harness.must_claim()
    for _ in range(9):
        lease = harness.next(lease)
    harness.leases.set_paused_tenants(POOL, [])
    order = []
    for _ in range(10):
        lease = harness.next(lease)
        order.append(lease.tenant)
    assert Counter(order) == {"z": 5, "b": 5}


def test_a_pause_keeps_charged_gpu_seconds(harness: LeaseHarness) -> None:
    """The charge of a running job is corrected while its tenant is paused."""
    harness.server()
    harness.push("a1", "a2", tenant="a", place=0)
    harness.push("b1", "b2", "b3", tenant="b")
    lease = harness.must_claim()
    harness.leases.set_paused_tenants(POOL, ["a"])
    lease = harness.next(lease, 100.0)
    harness.leases.set_paused_tenants(POOL, [])
    order = [lease.job_id]
    for _ in range(3):
        lease = harness.next(lease)
        order.append(lease.job_id)
    assert order == ["b1", "b2", "b3", "a2"]


def test_a_running_job_finishes_and_its_retry_is_parked(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("a1", tenant="a")
    lease = harness.must_claim()
    harness.leases.set_paused_tenants(POOL, ["a"])
    assert harness.leases.renew("w1", [lease], []) == []
    harness.release(lease, gpu_seconds=0)
    harness.leases.confirm_ends([lease.ref])
    pushed = harness.leases.push(POOL, [harness.tickets["a1"]])
    assert (pushed.results[0].outcome, pushed.wakes) == (PushOutcome.QUEUED, ())
    assert harness.claim() is None
    assert harness.in_line("a1")


def test_a_push_of_a_paused_tenant_forecasts_no_lease_and_sends_no_wake(harness: LeaseHarness) -> None:
    harness.server(slots=4)
    harness.leases.set_paused_tenants(POOL, ["a"])
    pushed = harness.leases.push(POOL, [harness.ticket("a1", tenant="a"), harness.ticket("b1", tenant="b")])
    assert [result.outcome for result in pushed.results] == [PushOutcome.QUEUED, PushOutcome.LEASED]
    assert counts(pushed.wakes) == {(POOL, None): 1}


def test_the_fill_counts_no_wakes_for_parked_tickets(harness: LeaseHarness) -> None:
    harness.server(slots=3)
    harness.push("a1", "a2", tenant="a")
    harness.leases.set_paused_tenants(POOL, ["a"])
    assert harness.leases.fill() == ()


def test_a_released_tenants_tickets_get_wakes(harness: LeaseHarness) -> None:
    harness.server(slots=3)
    harness.leases.set_paused_tenants(POOL, ["a", "b"])
    harness.push("a1", "a2", tenant="a")
    harness.push("b1", tenant="b")
    assert counts(harness.leases.set_paused_tenants(POOL, ["b"])) == {(POOL, None): 2}
    assert counts(harness.leases.set_paused_tenants(POOL, [])) == {(POOL, None): 1}
    assert harness.leases.set_paused_tenants(POOL, []) == ()


def test_a_band_of_paused_tenants_only_is_not_due(harness: LeaseHarness) -> None:
    """The band is not due at once after the release, and does not delay a higher band meanwhile."""
    harness.server()
    harness.push("a1", tenant="a", priority=9)
    harness.push(*(f"u{i:02}" for i in range(60)), tenant="b", priority=1)
    harness.leases.set_paused_tenants(POOL, ["a"])
    lease = harness.must_claim()
    for _ in range(20):
        lease = harness.next(lease)
        assert lease.tenant == "b"
    harness.leases.set_paused_tenants(POOL, [])
    order = []
    for _ in range(16):
        lease = harness.next(lease)
        order.append(lease.job_id)
    assert order.index("a1") == 15


def test_a_parked_ticket_can_be_removed_and_is_reachable(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("a1", "a2", tenant="a")
    harness.leases.set_paused_tenants(POOL, ["a"])
    assert harness.push("a1", tenant="a")[0].outcome is PushOutcome.DUPLICATE
    assert harness.leases.remove(POOL, harness.tickets["a1"])
    assert not harness.leases.remove(POOL, harness.tickets["a1"])
    assert [harness.in_line(job) for job in ("a1", "a2")] == [False, True]
    harness.leases.set_paused_tenants(POOL, [])
    assert harness.run_all() == ["a2"]


def test_parked_tickets_are_counted_apart(harness: LeaseHarness) -> None:
    harness.push("a1", "a2", tenant="a")
    harness.push("b1", tenant="b")
    harness.leases.set_paused_tenants(POOL, ["a"])
    harness.push("a3", tenant="a", priority=9, model="zimg")
    harness.leases.remove(POOL, harness.tickets["a1"])
    depth = harness.leases.depth(POOL)
    assert (depth.waiting, depth.parked) == ({"flux": 1}, {"flux": 1, "zimg": 1})
    harness.leases.set_paused_tenants(POOL, [])
    depth = harness.leases.depth(POOL)
    assert (depth.waiting, depth.parked) == ({"flux": 2, "zimg": 1}, {})


def test_switching_the_order_keeps_tenants_parked(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("a1", tenant="a", place=0)
    harness.push("b1", tenant="b", place=1)
    harness.leases.set_paused_tenants(POOL, ["a"])
    harness.pool("fifo")
    lease = harness.must_claim()
    assert lease.job_id == "b1"
    harness.release(lease, gpu_seconds=1)
    harness.pool("fair")
    assert harness.claim() is None


def test_pools_are_paused_apart(harness: LeaseHarness) -> None:
    harness.server()
    harness.leases.set_paused_tenants("other", ["a"])
    harness.push("a1", tenant="a")
    assert harness.must_claim().job_id == "a1"


def test_a_claim_costs_the_same_with_paused_tenants(harness: LeaseHarness) -> None:
    harness.server(slots=20)
    harness.push(*(f"b{i}" for i in range(9)), tenant="b")
    harness.must_claim()
    before = commands_of_a_claim(harness)
    for number in range(30):
        harness.push(*(f"p{number}-{i}" for i in range(5)), tenant=f"a{number}", place=0)
    harness.leases.set_paused_tenants(POOL, [f"a{number}" for number in range(30)])
    assert commands_of_a_claim(harness) == before


def commands_of_a_claim(harness: LeaseHarness) -> dict[str, int]:
    harness.client.config_resetstat()
    assert harness.must_claim().tenant == "b"
    stats = harness.client.info("commandstats")
    return {name: stat["calls"] for name, stat in stats.items() if name != "cmdstat_config|resetstat"}


def test_names_that_cannot_be_keys_are_refused(harness: LeaseHarness) -> None:
    with pytest.raises(ValueError, match="colon"):
        harness.leases.set_paused_tenants(POOL, ["a:b"])


def test_a_second_ticket_of_a_job_that_runs_is_dropped(harness: LeaseHarness) -> None:
    """Left from before its priority changed: no job ever holds two slots."""
    harness.server(slots=2)
    harness.push("a1", priority=5)
    harness.push("a1", priority=1)
    harness.push("a2", priority=9)
    assert [harness.must_claim().job_id for _ in range(2)] == ["a1", "a2"]
    assert harness.waiting() == 0


def test_a_release_drops_a_second_ticket_of_a_held_job(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("a0", "a1", priority=1)
    harness.push("a1", priority=5)
    first, second = harness.must_claim(), harness.must_claim()
    harness.push("a2", priority=9)
    assert (first.job_id, second.job_id) == ("a0", "a1")
    assert harness.next(first).job_id == "a2"
    assert harness.waiting() == 0


# -- during a rebuild -----------------------------------------------------------------------


def test_pauses_set_during_a_rebuild_apply_to_tickets(harness: LeaseHarness) -> None:
    begin(harness)
    harness.server(slots=2)
    assert harness.leases.set_paused_tenants(POOL, ["a"]) == ()
    harness.push("a1", tenant="a")
    harness.push("b1", tenant="b")
    assert harness.leases.set_paused_tenants(POOL, ["b"]) == (), "no wakes before the index is whole"
    harness.leases.open_generation("one")
    assert harness.must_claim().job_id == "a1"
    assert harness.claim() is None


def test_a_restored_lease_takes_its_ticket_from_a_parked_line(harness: LeaseHarness) -> None:
    begin(harness)
    harness.server()
    lease = database_lease()
    harness.leases.set_paused_tenants(POOL, [lease.tenant])
    harness.leases.push(POOL, [Ticket(lease.job_id, lease.model, lease.tenant, lease.priority, 1)])
    assert harness.leases.restore_lease(lease)
    harness.leases.open_generation("one")
    assert harness.leases.depth(POOL).parked == {}
