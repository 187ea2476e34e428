"""Paused tenants: their tickets keep their places, are not leased, and delay no other tenant."""

from __future__ import annotations

from collections import Counter

import pytest

from gpus.protocol import PushOutcome, Ticket
from tests.gpus.leasing.rebuild_rig import begin, database_lease
from tests.gpus.leasing.rig import POOL, Rig, counts


def test_a_paused_tenants_tickets_are_not_leased(rig: Rig) -> None:
    rig.server()
    rig.push("a1", tenant="a", place=0)
    rig.push("b1", tenant="b", place=1)
    rig.leases.set_paused_tenants(POOL, ["a"])
    assert rig.run_all() == ["b1"]
    assert rig.in_line("a1")


@pytest.mark.parametrize("algorithm", ["fair", "fifo"])
def test_a_released_tenant_keeps_its_places(rig: Rig, algorithm: str) -> None:
    rig.pool(algorithm)
    rig.server()
    rig.push("late", tenant="a", place=20)
    rig.push("early", tenant="a", place=10, model="flux")
    rig.push("first", tenant="b", place=0)
    rig.leases.set_paused_tenants(POOL, ["a"])
    rig.push("middle", tenant="a", place=15)
    rig.leases.set_paused_tenants(POOL, [])
    order = rig.run_all()
    assert [job for job in order if job != "first"] == ["early", "middle", "late"]
    assert order[0] == "first" or algorithm == "fair"


def test_each_call_sets_the_whole_list_of_tenants(rig: Rig) -> None:
    rig.server()
    for tenant in "abc":
        rig.push(f"{tenant}1", tenant=tenant)
    rig.leases.set_paused_tenants(POOL, ["a", "b"])
    rig.leases.set_paused_tenants(POOL, ["a", "b"])
    rig.leases.set_paused_tenants(POOL, ["b", "c"])
    assert rig.run_all() == ["a1"]
    rig.leases.set_paused_tenants(POOL, [])
    assert sorted(rig.run_all()) == ["b1", "c1"]


def test_a_pause_is_no_credit(rig: Rig) -> None:
    """As for one that comes back from idle: turns are taken from now on."""
    rig.server()
    rig.push(*(f"z{i}" for i in range(20)), tenant="z")
    rig.push(*(f"b{i}" for i in range(20)), tenant="b")
    rig.leases.set_paused_tenants(POOL, ["z"])
    lease = rig.must_claim()
    for _ in range(9):
        lease = rig.next(lease)
    rig.leases.set_paused_tenants(POOL, [])
    order = []
    for _ in range(10):
        lease = rig.next(lease)
        order.append(lease.tenant)
    assert Counter(order) == {"z": 5, "b": 5}


def test_a_pause_keeps_charged_gpu_seconds(rig: Rig) -> None:
    """The charge of a running job is corrected while its tenant is paused."""
    rig.server()
    rig.push("a1", "a2", tenant="a", place=0)
    rig.push("b1", "b2", "b3", tenant="b")
    lease = rig.must_claim()
    rig.leases.set_paused_tenants(POOL, ["a"])
    lease = rig.next(lease, 100.0)
    rig.leases.set_paused_tenants(POOL, [])
    order = [lease.job_id]
    for _ in range(3):
        lease = rig.next(lease)
        order.append(lease.job_id)
    assert order == ["b1", "b2", "b3", "a2"]


def test_a_running_job_finishes_and_its_retry_is_parked(rig: Rig) -> None:
    rig.server()
    rig.push("a1", tenant="a")
    lease = rig.must_claim()
    rig.leases.set_paused_tenants(POOL, ["a"])
    assert rig.leases.renew("w1", [lease], []) == []
    rig.release(lease, gpu_seconds=0)
    rig.leases.confirm_ends([lease.ref])
    pushed = rig.leases.push(POOL, [rig.tickets["a1"]])
    assert (pushed.results[0].outcome, pushed.wakes) == (PushOutcome.QUEUED, ())
    assert rig.claim() is None
    assert rig.in_line("a1")


def test_a_push_of_a_paused_tenant_forecasts_no_lease_and_sends_no_wake(rig: Rig) -> None:
    rig.server(slots=4)
    rig.leases.set_paused_tenants(POOL, ["a"])
    pushed = rig.leases.push(POOL, [rig.ticket("a1", tenant="a"), rig.ticket("b1", tenant="b")])
    assert [result.outcome for result in pushed.results] == [PushOutcome.QUEUED, PushOutcome.LEASED]
    assert counts(pushed.wakes) == {(POOL, None): 1}


def test_the_fill_counts_no_wakes_for_parked_tickets(rig: Rig) -> None:
    rig.server(slots=3)
    rig.push("a1", "a2", tenant="a")
    rig.leases.set_paused_tenants(POOL, ["a"])
    assert rig.leases.fill() == ()


def test_a_released_tenants_tickets_get_wakes(rig: Rig) -> None:
    rig.server(slots=3)
    rig.leases.set_paused_tenants(POOL, ["a", "b"])
    rig.push("a1", "a2", tenant="a")
    rig.push("b1", tenant="b")
    assert counts(rig.leases.set_paused_tenants(POOL, ["b"])) == {(POOL, None): 2}
    assert counts(rig.leases.set_paused_tenants(POOL, [])) == {(POOL, None): 1}
    assert rig.leases.set_paused_tenants(POOL, []) == ()


def test_a_band_of_paused_tenants_only_is_not_due(rig: Rig) -> None:
    """The band is not due at once after the release, and does not delay a higher band meanwhile."""
    rig.server()
    rig.push("a1", tenant="a", priority=9)
    rig.push(*(f"u{i:02}" for i in range(60)), tenant="b", priority=1)
    rig.leases.set_paused_tenants(POOL, ["a"])
    lease = rig.must_claim()
    for _ in range(20):
        lease = rig.next(lease)
        assert lease.tenant == "b"
    rig.leases.set_paused_tenants(POOL, [])
    order = []
    for _ in range(16):
        lease = rig.next(lease)
        order.append(lease.job_id)
    assert order.index("a1") == 15


def test_a_parked_ticket_can_be_removed_and_is_reachable(rig: Rig) -> None:
    rig.server()
    rig.push("a1", "a2", tenant="a")
    rig.leases.set_paused_tenants(POOL, ["a"])
    assert rig.push("a1", tenant="a")[0].outcome is PushOutcome.DUPLICATE
    assert rig.leases.remove(POOL, rig.tickets["a1"])
    assert not rig.leases.remove(POOL, rig.tickets["a1"])
    assert [rig.in_line(job) for job in ("a1", "a2")] == [False, True]
    rig.leases.set_paused_tenants(POOL, [])
    assert rig.run_all() == ["a2"]


def test_parked_tickets_are_counted_apart(rig: Rig) -> None:
    rig.push("a1", "a2", tenant="a")
    rig.push("b1", tenant="b")
    rig.leases.set_paused_tenants(POOL, ["a"])
    rig.push("a3", tenant="a", priority=9, model="zimg")
    rig.leases.remove(POOL, rig.tickets["a1"])
    depth = rig.leases.depth(POOL)
    assert (depth.waiting, depth.parked) == ({"flux": 1}, {"flux": 1, "zimg": 1})
    rig.leases.set_paused_tenants(POOL, [])
    depth = rig.leases.depth(POOL)
    assert (depth.waiting, depth.parked) == ({"flux": 2, "zimg": 1}, {})


def test_switching_the_order_keeps_tenants_parked(rig: Rig) -> None:
    rig.server()
    rig.push("a1", tenant="a", place=0)
    rig.push("b1", tenant="b", place=1)
    rig.leases.set_paused_tenants(POOL, ["a"])
    rig.pool("fifo")
    lease = rig.must_claim()
    assert lease.job_id == "b1"
    rig.release(lease, gpu_seconds=1)
    rig.pool("fair")
    assert rig.claim() is None


def test_pools_are_paused_apart(rig: Rig) -> None:
    rig.server()
    rig.leases.set_paused_tenants("other", ["a"])
    rig.push("a1", tenant="a")
    assert rig.must_claim().job_id == "a1"


def test_a_claim_costs_the_same_with_paused_tenants(rig: Rig) -> None:
    rig.server(slots=20)
    rig.push(*(f"b{i}" for i in range(9)), tenant="b")
    rig.must_claim()
    before = commands_of_a_claim(rig)
    for number in range(30):
        rig.push(*(f"p{number}-{i}" for i in range(5)), tenant=f"a{number}", place=0)
    rig.leases.set_paused_tenants(POOL, [f"a{number}" for number in range(30)])
    assert commands_of_a_claim(rig) == before


def commands_of_a_claim(rig: Rig) -> dict[str, int]:
    rig.client.config_resetstat()
    assert rig.must_claim().tenant == "b"
    stats = rig.client.info("commandstats")
    return {name: stat["calls"] for name, stat in stats.items() if name != "cmdstat_config|resetstat"}


def test_names_that_cannot_be_keys_are_refused(rig: Rig) -> None:
    with pytest.raises(ValueError, match="colon"):
        rig.leases.set_paused_tenants(POOL, ["a:b"])


def test_a_second_ticket_of_a_job_that_runs_is_dropped(rig: Rig) -> None:
    """Left from before its priority changed: no job ever holds two slots."""
    rig.server(slots=2)
    rig.push("a1", priority=5)
    rig.push("a1", priority=1)
    rig.push("a2", priority=9)
    assert [rig.must_claim().job_id for _ in range(2)] == ["a1", "a2"]
    assert rig.waiting() == 0


def test_a_release_drops_a_second_ticket_of_a_held_job(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("a0", "a1", priority=1)
    rig.push("a1", priority=5)
    first, second = rig.must_claim(), rig.must_claim()
    rig.push("a2", priority=9)
    assert (first.job_id, second.job_id) == ("a0", "a1")
    assert rig.next(first).job_id == "a2"
    assert rig.waiting() == 0


# -- during a rebuild -----------------------------------------------------------------------


def test_pauses_set_during_a_rebuild_apply_to_tickets(rig: Rig) -> None:
    begin(rig)
    rig.server(slots=2)
    assert rig.leases.set_paused_tenants(POOL, ["a"]) == ()
    rig.push("a1", tenant="a")
    rig.push("b1", tenant="b")
    assert rig.leases.set_paused_tenants(POOL, ["b"]) == (), "no wakes before the index is whole"
    rig.leases.open_generation("one")
    assert rig.must_claim().job_id == "a1"
    assert rig.claim() is None


def test_a_restored_lease_takes_its_ticket_from_a_parked_line(rig: Rig) -> None:
    begin(rig)
    rig.server()
    lease = database_lease()
    rig.leases.set_paused_tenants(POOL, [lease.tenant])
    rig.leases.push(POOL, [Ticket(lease.job_id, lease.model, lease.tenant, lease.priority, 1)])
    assert rig.leases.restore_lease(lease)
    rig.leases.open_generation("one")
    assert rig.leases.depth(POOL).parked == {}
