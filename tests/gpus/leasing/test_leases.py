"""A lease from claim to end, and the state after each kind of end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpus.protocol import ReleaseMode
from tests.gpus.leasing.rig import POOL, START_MS, WORKER, Rig, ref_of


def test_a_claim_gives_a_slot_and_a_ticket_or_neither(rig: Rig) -> None:
    rig.push("j1")
    assert rig.claim() is None
    assert rig.waiting() == 1
    rig.server()
    lease = rig.must_claim("attempt")
    assert (lease.job_id, lease.slot, lease.attempt_id, lease.epoch) == ("j1", "s1/0", "attempt", 1)
    assert (lease.pool, lease.model, lease.tenant, lease.priority) == (POOL, "flux", "t1", 5)
    assert lease.leased_at_ms == START_MS
    assert rig.claim() is None


@pytest.mark.parametrize("priority", range(1, 10))
def test_a_lease_has_the_priority_of_its_ticket(rig: Rig, priority: int) -> None:
    rig.server()
    rig.push("j1", priority=priority)
    assert rig.must_claim().priority == priority


def test_a_slot_is_never_leased_twice(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("j1", "j2", "j3")
    assert {rig.must_claim().slot, rig.must_claim().slot} == {"s1/0", "s1/1"}
    assert rig.claim() is None


def test_the_slot_that_is_free_the_longest_is_used_first(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("j1", "j2", "j3")
    first, second = rig.must_claim(), rig.must_claim()
    for lease in (second, first):
        rig.wait(1)
        rig.release(lease)
        rig.leases.confirm_ends([lease.ref])
    assert rig.must_claim().slot == second.slot


def test_the_fence_of_a_slot_grows_with_every_lease(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2", "j3")
    lease = rig.must_claim()
    assert lease.fence == START_MS * 1000
    following = rig.next(lease)
    assert following.fence == lease.fence + 1
    rig.wait(10)
    assert rig.next(following).fence == (START_MS + 10_000) * 1000


# -- the ways to end --------------------------------------------------------------------------------------


def test_settle_keeps_slot_and_job_until_the_commit(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2")
    lease = rig.must_claim()
    rig.release(lease)
    assert rig.states() == ["settling"]
    assert rig.claim() is None
    rig.leases.confirm_ends([lease.ref])
    assert rig.must_claim().job_id == "j2"
    assert not rig.in_line("j1")


def test_settle_hands_the_slot_on_while_the_end_is_not_committed(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2")
    lease = rig.must_claim()
    following = rig.release(lease, next_attempt_id="next")
    assert following is not None
    assert (following.job_id, following.slot) == ("j2", lease.slot)
    assert rig.in_line("j1")
    assert rig.leases.is_held(lease.ref)
    rig.leases.confirm_ends([lease.ref])
    assert not rig.in_line("j1")
    assert rig.leases.is_held(following.ref)


def test_free_forgets_job_and_slot_at_once(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.wait(5)
    rig.release(lease, "free")
    assert rig.states() == ["free"]
    assert not rig.in_line("j1")
    assert not rig.leases.is_held(lease.ref)


def test_giving_back_a_lease_costs_nothing(rig: Rig) -> None:
    rig.server()
    rig.push("a1", "a2", tenant="a")
    rig.push("b1", tenant="b")
    lease = rig.must_claim()
    rig.wait(60)
    rig.release(lease, "free")
    assert rig.must_claim().job_id == "a2"


def test_suspect_shuts_the_slot_and_keeps_the_job_until_the_commit(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2")
    lease = rig.must_claim()
    rig.release(lease, "suspect")
    assert rig.states() == ["quarantined"]
    assert rig.in_line("j1")
    rig.leases.confirm_ends([lease.ref])
    assert rig.states() == ["quarantined"]
    assert not rig.in_line("j1")
    assert rig.claim() is None
    rig.leases.free_slot(lease.slot)
    assert rig.must_claim().job_id == "j2"


def test_adopt_lets_the_next_claim_go_on_with_the_same_attempt(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2")
    lease = rig.must_claim()
    rig.wait(2)
    rig.release(lease, "adopt")
    assert rig.states() == ["adoptable"]
    assert rig.in_line("j1")
    adopted = rig.must_claim("asked", worker="w2")
    assert adopted == replace(lease, adopted=True)
    assert rig.claim("asked", worker="w2") == adopted


def test_adoptable_leases_are_claimed_before_tickets(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("j1", "j2")
    rig.release(rig.must_claim(), "adopt")
    assert [rig.must_claim().adopted, rig.must_claim().adopted] == [True, False]


def test_a_taken_over_lease_is_valid_under_its_new_epoch_only(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.release(lease, "adopt")
    adopted = rig.must_claim(worker="w2")
    assert rig.leases.take_over(adopted.ref, worker="w2", new_epoch=2)
    rig.release(lease, worker="w1")
    assert rig.states() == ["leased"]
    assert not rig.leases.is_held(lease.ref)
    rig.leases.release(ref_of(lease, epoch=2), ReleaseMode.ENDED, worker="w2")
    assert rig.states() == ["settling"]


def test_a_handed_over_lease_cannot_be_ended_until_it_is_claimed(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.release(lease, "adopt")
    for mode in ReleaseMode:
        rig.leases.release(lease.ref, mode, worker="w1")
    assert rig.states() == ["adoptable"]


def test_only_one_worker_takes_over(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.release(lease, "adopt")
    rig.must_claim(worker="w2")
    assert not rig.leases.take_over(lease.ref, worker="w3", new_epoch=2)
    assert rig.leases.take_over(lease.ref, worker="w2", new_epoch=2)
    assert not rig.leases.take_over(lease.ref, worker="w3", new_epoch=2)


def test_an_adoptable_lease_can_be_taken_over_without_a_claim(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.release(lease, "adopt")
    assert rig.leases.take_over(lease.ref, worker="sweep", new_epoch=4)
    rig.leases.release(ref_of(lease, epoch=4), ReleaseMode.ADOPT, worker="sweep")
    assert rig.must_claim().epoch == 4


@pytest.mark.parametrize(
    "wrong", [{"job_id": "other"}, {"attempt_id": "other"}, {"epoch": 2}, {"slot": "s1/1"}]
)
@pytest.mark.parametrize("mode", list(ReleaseMode))
def test_a_release_under_another_ref_changes_nothing(
    rig: Rig, mode: ReleaseMode, wrong: dict[str, object]
) -> None:
    rig.server(slots=2)
    rig.push("j1")
    lease = rig.must_claim()
    before = rig.states()
    rig.leases.release(ref_of(lease, **wrong), mode, worker="w1")
    assert rig.states() == before
    assert rig.leases.is_held(lease.ref)


@pytest.mark.parametrize("mode", list(ReleaseMode))
def test_another_worker_cannot_end_a_lease(rig: Rig, mode: ReleaseMode) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.leases.release(lease.ref, mode, worker="w2")
    assert rig.states() == ["leased"]


def test_only_a_clean_end_hands_the_slot_on(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2")
    with pytest.raises(ValueError, match="ENDED"):
        rig.release(rig.must_claim(), "suspect", next_attempt_id="next")


# -- renewing ---------------------------------------------------------------------------------------------


def test_renewing_keeps_leases_and_unconfirmed_ends_from_running_out(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("j1", "j2")
    running, ended = rig.must_claim(), rig.must_claim()
    rig.release(ended)
    for _ in range(4):
        rig.wait(5)
        assert rig.leases.renew("w1", [running], [ended]) == []
        assert rig.leases.expired() == []


def test_renew_returns_leases_held_by_another_worker(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("j1", "j2")
    mine, theirs = rig.must_claim(), rig.must_claim(worker="w2")
    assert rig.leases.renew("w1", [mine, theirs], []) == [theirs.ref]


def test_renew_returns_ended_leases(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.release(lease, "free")
    assert rig.leases.renew("w1", [lease], []) == [lease.ref]


def test_a_lease_that_just_began_to_settle_is_not_lost(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.release(lease)
    assert rig.leases.renew("w1", [lease], []) == []


def test_a_lease_that_is_about_to_settle_is_renewed_as_an_end(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.wait(14)
    assert rig.leases.renew("w1", [], [lease]) == []
    assert rig.leases.slots("s1")[0].expires_in_seconds == 15.0


def test_a_renewal_never_takes_a_handed_over_lease_back(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.release(lease, "adopt")
    assert rig.leases.renew("w1", [lease], []) == [lease.ref]
    assert rig.states() == ["adoptable"]


def test_granted_returns_an_existing_lease_and_grants_none(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("j1", "j2")
    lease = rig.must_claim()
    assert rig.leases.granted(lease.attempt_id, worker=WORKER) == lease
    assert rig.leases.granted(lease.attempt_id, worker="another") is None
    assert rig.leases.granted("nobody", worker=WORKER) is None
    assert rig.states() == ["leased", "free"]
    rig.release(lease, "free")
    assert rig.leases.granted(lease.attempt_id, worker=WORKER) is None


def test_an_end_that_was_refused_frees_no_slot_of_a_run_that_is_adopted(rig: Rig) -> None:
    """Its worker settles it as usual, but another worker holds the attempt by then."""
    rig.server(slots=1)
    rig.push("a")
    lease = rig.must_claim()
    rig.release(lease, "adopt")
    rig.leases.confirm_ends([lease.ref])
    assert rig.states() == ["adoptable"]
    adopted = rig.must_claim(worker="w2")
    rig.leases.confirm_ends([lease.ref])
    assert rig.leases.take_over(adopted.ref, worker="w2", new_epoch=2)
    assert rig.states() == ["leased"]
