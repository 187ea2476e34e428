"""Servers are added, changed, rested and removed; and the wakes that follow."""

from __future__ import annotations

import pytest

from gpus.protocol import PoolSpec, Ticket
from tests.gpus.leasing.lease_harness import MODEL, POOL, LeaseHarness, counts


def test_new_slots_return_wakes_for_waiting_tickets(harness: LeaseHarness) -> None:
    harness.push("j1", "j2")
    assert counts(harness.server(slots=3)) == {(POOL, None): 2}
    assert harness.server(slots=3) == ()


def test_more_slots_take_effect_at_once(harness: LeaseHarness) -> None:
    harness.server(slots=1)
    harness.push("j1", "j2")
    harness.must_claim()
    assert counts(harness.server(slots=2)) == {(POOL, None): 1}
    assert harness.must_claim().slot == "s1/1"


@pytest.mark.parametrize("desired", ["draining", "off"])
def test_a_server_that_is_not_on_gets_no_new_lease(harness: LeaseHarness, desired: str) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2", "j3")
    lease = harness.must_claim()
    harness.server(slots=2, desired=desired)
    assert harness.states() == ["leased", "off"]
    assert harness.claim() is None
    assert harness.release(lease, next_attempt_id="no") is None
    harness.leases.confirm_ends([lease.ref])
    assert harness.states() == ["off", "off"]
    assert counts(harness.server(slots=2)) == {(POOL, None): 2}


def test_a_run_on_a_draining_server_can_be_adopted(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.server(desired="draining")
    harness.release(lease, "adopt")
    assert harness.must_claim(worker="w2").attempt_id == lease.attempt_id


def test_a_change_of_models_applies_at_once(harness: LeaseHarness) -> None:
    harness.server(models=("flux",))
    harness.push("z1", model="zimg")
    assert harness.claim() is None
    assert counts(harness.server(models=("zimg",))) == {}  # its slot was free before: the fill sends the wake
    assert counts(harness.leases.fill()) == {(POOL, None): 1}
    assert harness.must_claim().job_id == "z1"


def test_a_server_moves_to_another_pool_with_its_slots(harness: LeaseHarness) -> None:
    harness.leases.configure_pool(PoolSpec("other"))
    harness.server(slots=2)
    harness.push("j1", "j2")
    lease = harness.must_claim()
    harness.server(slots=2, pool="other")
    assert harness.claim() is None
    assert harness.release(lease, next_attempt_id="no") is None
    harness.leases.confirm_ends([lease.ref])
    assert harness.leases.depth("other").slots == {"free": 2}
    assert harness.leases.depth(POOL).slots == {}
    harness.leases.push("other", [harness.ticket("j9")])
    assert harness.must_claim(pool="other").job_id == "j9"


def test_leases_on_a_removed_server_continue_until_they_end(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2")
    lease = harness.must_claim()
    harness.leases.forget_server("s1")
    harness.leases.forget_server("s1")
    assert harness.claim() is None
    assert harness.states() == ["leased"]
    assert harness.leases.renew("w1", [lease], []) == []
    assert harness.release(lease, next_attempt_id="no") is None
    harness.leases.confirm_ends([lease.ref])
    assert harness.states() == []
    assert harness.all_keys() & {"server:s1", "slot:s1/0", "servers"} == set()


def test_a_forgotten_servers_quarantined_slots_are_forgotten_too(harness: LeaseHarness) -> None:
    harness.server()
    harness.leases.quarantine("s1/0", "old")
    harness.leases.forget_server("s1")
    assert harness.states() == []
    harness.server()
    assert harness.states() == ["free"]


def test_a_removed_server_can_return_while_a_lease_still_runs(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2")
    lease = harness.must_claim()
    harness.leases.forget_server("s1")
    harness.server()
    assert harness.next(lease).job_id == "j2"


# -- rest -------------------------------------------------------------------------------------------------


def test_a_resting_server_gets_no_lease(harness: LeaseHarness) -> None:
    harness.server("s1")
    harness.server("s2")
    harness.push("j1", "j2")
    harness.leases.rest_server("s1", 3.0)
    assert harness.must_claim().server == "s2"
    assert harness.claim() is None
    assert harness.leases.slots("s1")[0].resting
    harness.wait(3)
    assert harness.must_claim().server == "s1"


def test_a_longer_rest_is_not_shortened(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    harness.leases.rest_server("s1", 30.0)
    harness.leases.rest_server("s1", 1.0)
    harness.wait(2)
    assert harness.claim() is None


@pytest.mark.parametrize("mode", ["ended", "free"])
def test_a_release_can_send_the_server_to_rest(harness: LeaseHarness, mode: str) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2", "j3")
    lease = harness.must_claim()
    following = "next" if mode == "ended" else None
    assert harness.release(lease, mode, rest_seconds=5.0, next_attempt_id=following) is None
    harness.leases.confirm_ends([lease.ref])
    assert harness.states() == ["free", "free"]
    assert harness.claim() is None
    harness.wait(5)
    assert counts(harness.leases.fill()) == {(POOL, None): 2}
    assert harness.claim() is not None


def test_a_slot_freed_on_a_resting_server_needs_no_wake(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2")
    lease = harness.must_claim()
    harness.release(lease)
    harness.leases.rest_server("s1", 5.0)
    assert harness.leases.confirm_ends([lease.ref]) == ()


# -- pinned drivers ---------------------------------------------------------------------------------------


def test_a_pinned_server_is_driven_only_from_its_host(harness: LeaseHarness) -> None:
    harness.server("s1", host="box-1")
    harness.push("j1", "j2")
    assert harness.claim() is None
    assert harness.claim(host="box-2") is None
    assert harness.must_claim(host="box-1").server == "s1"


def test_a_workers_host_gets_no_slot_of_others(harness: LeaseHarness) -> None:
    harness.server("s1")
    harness.push("j1")
    assert harness.claim(host="box-1") is None


def test_a_slot_pinned_during_a_run_is_not_leased_on(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2")
    lease = harness.must_claim()
    harness.server(host="box-1")
    assert harness.release(lease, next_attempt_id="no") is None


def test_wakes_go_to_the_hosts_that_can_work(harness: LeaseHarness) -> None:
    harness.server("s1", slots=2, host="box-1")
    harness.server("s2", slots=1, host="box-2")
    pushed = harness.leases.push(POOL, [harness.ticket(f"j{i}") for i in range(9)])
    assert counts(pushed.wakes) == {(POOL, "box-1"): 2, (POOL, "box-2"): 1}


def test_the_fill_counts_wakes_for_every_host_with_usable_slots(harness: LeaseHarness) -> None:
    harness.server("s1", host="gone")
    harness.server("s2", host="here")
    harness.push("j1")
    for _ in range(2):
        assert counts(harness.leases.fill()) == {(POOL, "gone"): 1, (POOL, "here"): 1}


# -- wakes ------------------------------------------------------------------------------------------------


def test_a_push_sends_no_more_wakes_than_free_slots_and_tickets(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    assert counts(harness.leases.push(POOL, [harness.ticket("j1")]).wakes) == {(POOL, None): 1}
    more = harness.leases.push(POOL, [harness.ticket("j2"), harness.ticket("j3")])
    assert counts(more.wakes) == {(POOL, None): 1}
    assert harness.leases.push(POOL, [harness.ticket("j4")]).wakes == ()
    assert harness.leases.depth(POOL).wakes_pending == 2


def test_a_wake_is_used_up_by_the_claim_that_follows_it(harness: LeaseHarness) -> None:
    harness.server(slots=1)
    harness.push("j1")
    lease = harness.must_claim()
    assert harness.leases.depth(POOL).wakes_pending == 0
    harness.release(lease)
    harness.leases.confirm_ends([lease.ref])
    assert counts(harness.leases.push(POOL, [harness.ticket("j2")]).wakes) == {(POOL, None): 1}


def test_a_claim_without_a_result_uses_up_its_wake(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    harness.leases.remove(POOL, harness.tickets["j1"])
    assert harness.claim() is None
    assert counts(harness.leases.push(POOL, [harness.ticket("j2")]).wakes) == {(POOL, None): 1}


def test_a_lost_wake_is_sent_again_by_the_fill(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1")
    for _ in range(2):
        assert counts(harness.leases.fill()) == {(POOL, None): 1}
        assert harness.leases.depth(POOL).wakes_pending == 1
    harness.must_claim()
    assert harness.leases.fill() == ()


def test_no_wakes_for_a_model_that_no_free_slot_runs(harness: LeaseHarness) -> None:
    harness.server(models=("flux",))
    assert harness.leases.push(POOL, [harness.ticket("z1", model="zimg")]).wakes == ()
    assert harness.leases.fill() == ()


def test_adoptable_leases_are_filled_too(harness: LeaseHarness) -> None:
    harness.server(host="box-1")
    harness.push("j1")
    harness.release(harness.must_claim(host="box-1"), "adopt")
    assert counts(harness.leases.fill()) == {(POOL, "box-1"): 1}


def test_the_fill_looks_at_every_pool(harness: LeaseHarness) -> None:
    for number in range(60):
        harness.server(f"s{number}", pool=f"p{number:02}")
        harness.leases.push(f"p{number:02}", [harness.ticket(f"j{number}")])
    assert len(harness.leases.fill()) == 60


# -- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a:b", "a,b"])
def test_names_that_would_break_keys_are_refused(harness: LeaseHarness, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        harness.server(name)
    with pytest.raises(ValueError, match="name"):
        harness.server("s1", models=(name,))
    with pytest.raises(ValueError, match="name"):
        harness.pool(name=name)
    for ticket in (Ticket("j", name, "t", 5, 1), Ticket("j", MODEL, name, 5, 1)):
        with pytest.raises(ValueError, match="name"):
            harness.leases.push(POOL, [ticket])


@pytest.mark.parametrize("weight", [0, -1.0, float("inf"), float("nan")])
def test_weights_must_be_positive(harness: LeaseHarness, weight: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        harness.tenant("t1", weight=weight)


@pytest.mark.parametrize("priority", [0, 10])
def test_priorities_out_of_range_are_refused(harness: LeaseHarness, priority: int) -> None:
    with pytest.raises(ValueError, match="priority"):
        harness.leases.push(POOL, [Ticket("j", MODEL, "t", priority, 1)])
