"""Servers are added, changed, rested and removed; and the wakes that follow."""

from __future__ import annotations

import pytest

from gpus.protocol import PoolSpec, Ticket
from tests.gpus.leasing.rig import MODEL, POOL, Rig, counts


def test_new_slots_return_wakes_for_waiting_tickets(rig: Rig) -> None:
    rig.push("j1", "j2")
    assert counts(rig.server(slots=3)) == {(POOL, None): 2}
    assert rig.server(slots=3) == ()


def test_more_slots_take_effect_at_once(rig: Rig) -> None:
    rig.server(slots=1)
    rig.push("j1", "j2")
    rig.must_claim()
    assert counts(rig.server(slots=2)) == {(POOL, None): 1}
    assert rig.must_claim().slot == "s1/1"


@pytest.mark.parametrize("desired", ["draining", "off"])
def test_a_server_that_is_not_on_gets_no_new_lease(rig: Rig, desired: str) -> None:
    rig.server(slots=2)
    rig.push("j1", "j2", "j3")
    lease = rig.must_claim()
    rig.server(slots=2, desired=desired)
    assert rig.states() == ["leased", "off"]
    assert rig.claim() is None
    assert rig.release(lease, next_attempt_id="no") is None
    rig.leases.confirm_ends([lease.ref])
    assert rig.states() == ["off", "off"]
    assert counts(rig.server(slots=2)) == {(POOL, None): 2}


def test_a_run_on_a_draining_server_can_be_adopted(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.server(desired="draining")
    rig.release(lease, "adopt")
    assert rig.must_claim(worker="w2").attempt_id == lease.attempt_id


def test_a_change_of_models_applies_at_once(rig: Rig) -> None:
    rig.server(models=("flux",))
    rig.push("z1", model="zimg")
    assert rig.claim() is None
    assert counts(rig.server(models=("zimg",))) == {}  # its slot was free before: the fill sends the wake
    assert counts(rig.leases.fill()) == {(POOL, None): 1}
    assert rig.must_claim().job_id == "z1"


def test_a_server_moves_to_another_pool_with_its_slots(rig: Rig) -> None:
    rig.leases.configure_pool(PoolSpec("other"))
    rig.server(slots=2)
    rig.push("j1", "j2")
    lease = rig.must_claim()
    rig.server(slots=2, pool="other")
    assert rig.claim() is None
    assert rig.release(lease, next_attempt_id="no") is None
    rig.leases.confirm_ends([lease.ref])
    assert rig.leases.depth("other").slots == {"free": 2}
    assert rig.leases.depth(POOL).slots == {}
    rig.leases.push("other", [rig.ticket("j9")])
    assert rig.must_claim(pool="other").job_id == "j9"


def test_leases_on_a_removed_server_continue_until_they_end(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("j1", "j2")
    lease = rig.must_claim()
    rig.leases.forget_server("s1")
    rig.leases.forget_server("s1")
    assert rig.claim() is None
    assert rig.states() == ["leased"]
    assert rig.leases.renew("w1", [lease], []) == []
    assert rig.release(lease, next_attempt_id="no") is None
    rig.leases.confirm_ends([lease.ref])
    assert rig.states() == []
    assert rig.all_keys() & {"server:s1", "slot:s1/0", "servers"} == set()


def test_a_forgotten_servers_quarantined_slots_are_forgotten_too(rig: Rig) -> None:
    rig.server()
    rig.leases.quarantine("s1/0", "old")
    rig.leases.forget_server("s1")
    assert rig.states() == []
    rig.server()
    assert rig.states() == ["free"]


def test_a_removed_server_can_return_while_a_lease_still_runs(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2")
    lease = rig.must_claim()
    rig.leases.forget_server("s1")
    rig.server()
    assert rig.next(lease).job_id == "j2"


# -- rest -------------------------------------------------------------------------------------------------


def test_a_resting_server_gets_no_lease(rig: Rig) -> None:
    rig.server("s1")
    rig.server("s2")
    rig.push("j1", "j2")
    rig.leases.rest_server("s1", 3.0)
    assert rig.must_claim().server == "s2"
    assert rig.claim() is None
    assert rig.leases.slots("s1")[0].resting
    rig.wait(3)
    assert rig.must_claim().server == "s1"


def test_a_longer_rest_is_not_shortened(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    rig.leases.rest_server("s1", 30.0)
    rig.leases.rest_server("s1", 1.0)
    rig.wait(2)
    assert rig.claim() is None


@pytest.mark.parametrize("mode", ["ended", "free"])
def test_a_release_can_send_the_server_to_rest(rig: Rig, mode: str) -> None:
    rig.server(slots=2)
    rig.push("j1", "j2", "j3")
    lease = rig.must_claim()
    following = "next" if mode == "ended" else None
    assert rig.release(lease, mode, rest_seconds=5.0, next_attempt_id=following) is None
    rig.leases.confirm_ends([lease.ref])
    assert rig.states() == ["free", "free"]
    assert rig.claim() is None
    rig.wait(5)
    assert counts(rig.leases.fill()) == {(POOL, None): 2}
    assert rig.claim() is not None


def test_a_slot_freed_on_a_resting_server_needs_no_wake(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2")
    lease = rig.must_claim()
    rig.release(lease)
    rig.leases.rest_server("s1", 5.0)
    assert rig.leases.confirm_ends([lease.ref]) == ()


# -- pinned drivers ---------------------------------------------------------------------------------------


def test_a_pinned_server_is_driven_only_from_its_host(rig: Rig) -> None:
    rig.server("s1", host="box-1")
    rig.push("j1", "j2")
    assert rig.claim() is None
    assert rig.claim(host="box-2") is None
    assert rig.must_claim(host="box-1").server == "s1"


def test_a_workers_host_gets_no_slot_of_others(rig: Rig) -> None:
    rig.server("s1")
    rig.push("j1")
    assert rig.claim(host="box-1") is None


def test_a_slot_pinned_during_a_run_is_not_leased_on(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2")
    lease = rig.must_claim()
    rig.server(host="box-1")
    assert rig.release(lease, next_attempt_id="no") is None


def test_wakes_go_to_the_hosts_that_can_work(rig: Rig) -> None:
    rig.server("s1", slots=2, host="box-1")
    rig.server("s2", slots=1, host="box-2")
    pushed = rig.leases.push(POOL, [rig.ticket(f"j{i}") for i in range(9)])
    assert counts(pushed.wakes) == {(POOL, "box-1"): 2, (POOL, "box-2"): 1}


def test_the_fill_counts_wakes_for_every_host_with_usable_slots(rig: Rig) -> None:
    rig.server("s1", host="gone")
    rig.server("s2", host="here")
    rig.push("j1")
    for _ in range(2):
        assert counts(rig.leases.fill()) == {(POOL, "gone"): 1, (POOL, "here"): 1}


# -- wakes ------------------------------------------------------------------------------------------------


def test_a_push_sends_no_more_wakes_than_free_slots_and_tickets(rig: Rig) -> None:
    rig.server(slots=2)
    assert counts(rig.leases.push(POOL, [rig.ticket("j1")]).wakes) == {(POOL, None): 1}
    more = rig.leases.push(POOL, [rig.ticket("j2"), rig.ticket("j3")])
    assert counts(more.wakes) == {(POOL, None): 1}
    assert rig.leases.push(POOL, [rig.ticket("j4")]).wakes == ()
    assert rig.leases.depth(POOL).wakes_pending == 2


def test_a_wake_is_used_up_by_the_claim_that_follows_it(rig: Rig) -> None:
    rig.server(slots=1)
    rig.push("j1")
    lease = rig.must_claim()
    assert rig.leases.depth(POOL).wakes_pending == 0
    rig.release(lease)
    rig.leases.confirm_ends([lease.ref])
    assert counts(rig.leases.push(POOL, [rig.ticket("j2")]).wakes) == {(POOL, None): 1}


def test_a_claim_without_a_result_uses_up_its_wake(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    rig.leases.remove(POOL, rig.tickets["j1"])
    assert rig.claim() is None
    assert counts(rig.leases.push(POOL, [rig.ticket("j2")]).wakes) == {(POOL, None): 1}


def test_a_lost_wake_is_sent_again_by_the_fill(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("j1")
    for _ in range(2):
        assert counts(rig.leases.fill()) == {(POOL, None): 1}
        assert rig.leases.depth(POOL).wakes_pending == 1
    rig.must_claim()
    assert rig.leases.fill() == ()


def test_no_wakes_for_a_model_that_no_free_slot_runs(rig: Rig) -> None:
    rig.server(models=("flux",))
    assert rig.leases.push(POOL, [rig.ticket("z1", model="zimg")]).wakes == ()
    assert rig.leases.fill() == ()


def test_adoptable_leases_are_filled_too(rig: Rig) -> None:
    rig.server(host="box-1")
    rig.push("j1")
    rig.release(rig.must_claim(host="box-1"), "adopt")
    assert counts(rig.leases.fill()) == {(POOL, "box-1"): 1}


def test_the_fill_looks_at_every_pool(rig: Rig) -> None:
    for number in range(60):
        rig.server(f"s{number}", pool=f"p{number:02}")
        rig.leases.push(f"p{number:02}", [rig.ticket(f"j{number}")])
    assert len(rig.leases.fill()) == 60


# -- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a:b", "a,b"])
def test_names_that_would_break_keys_are_refused(rig: Rig, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        rig.server(name)
    with pytest.raises(ValueError, match="name"):
        rig.server("s1", models=(name,))
    with pytest.raises(ValueError, match="name"):
        rig.pool(name=name)
    for ticket in (Ticket("j", name, "t", 5, 1), Ticket("j", MODEL, name, 5, 1)):
        with pytest.raises(ValueError, match="name"):
            rig.leases.push(POOL, [ticket])


@pytest.mark.parametrize("weight", [0, -1.0, float("inf"), float("nan")])
def test_weights_must_be_positive(rig: Rig, weight: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        rig.tenant("t1", weight=weight)


@pytest.mark.parametrize("priority", [0, 10])
def test_priorities_out_of_range_are_refused(rig: Rig, priority: int) -> None:
    with pytest.raises(ValueError, match="priority"):
        rig.leases.push(POOL, [Ticket("j", MODEL, "t", priority, 1)])
