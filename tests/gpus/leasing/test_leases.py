"""A lease from claim to end, and the state after each kind of end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpus.protocol import ReleaseMode
from tests.gpus.leasing.lease_harness import POOL, START_MS, WORKER, LeaseHarness, ref_of


def test_a_claim_gives_a_slot_and_a_ticket_or_neither(harness: LeaseHarness) -> None:
    harness.push("j1")
    assert harness.claim() is None
    assert harness.waiting() == 1
    harness.server()
    lease = harness.must_claim("attempt")
    assert (lease.job_id, lease.slot, lease.attempt_id, lease.epoch) == ("j1", "s1/0", "attempt", 1)
    assert (lease.pool, lease.model, lease.tenant, lease.priority) == (POOL, "flux", "t1", 5)
    assert lease.leased_at_ms == START_MS
    assert harness.claim() is None


@pytest.mark.parametrize("priority", range(1, 10))
def test_a_lease_has_the_priority_of_its_ticket(harness: LeaseHarness, priority: int) -> None:
    harness.server()
    harness.push("j1", priority=priority)
    assert harness.must_claim().priority == priority


def test_a_slot_is_never_leased_twice(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2", "j3")
    assert {harness.must_claim().slot, harness.must_claim().slot} == {"s1/0", "s1/1"}
    assert harness.claim() is None


def test_the_slot_that_is_free_the_longest_is_used_first(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2", "j3")
    first, second = harness.must_claim(), harness.must_claim()
    for lease in (second, first):
        harness.wait(1)
        harness.release(lease)
        harness.leases.confirm_ends([lease.ref])
    assert harness.must_claim().slot == second.slot


def test_the_fence_of_a_slot_grows_with_every_lease(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2", "j3")
    lease = harness.must_claim()
    assert lease.fence == START_MS * 1000
    following = harness.next(lease)
    assert following.fence == lease.fence + 1
    harness.wait(10)
    assert harness.next(following).fence == (START_MS + 10_000) * 1000


# -- the ways to end --------------------------------------------------------------------------------------


def test_settle_keeps_slot_and_job_until_the_commit(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2")
    lease = harness.must_claim()
    harness.release(lease)
    assert harness.states() == ["settling"]
    assert harness.claim() is None
    harness.leases.confirm_ends([lease.ref])
    assert harness.must_claim().job_id == "j2"
    assert not harness.in_line("j1")


def test_settle_hands_the_slot_on_while_the_end_is_not_committed(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2")
    lease = harness.must_claim()
    following = harness.release(lease, next_attempt_id="next")
    assert following is not None
    assert (following.job_id, following.slot) == ("j2", lease.slot)
    assert harness.in_line("j1")
    assert harness.leases.is_held(lease.ref)
    harness.leases.confirm_ends([lease.ref])
    assert not harness.in_line("j1")
    assert harness.leases.is_held(following.ref)


def test_free_forgets_job_and_slot_at_once(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.wait(5)
    harness.release(lease, "free")
    assert harness.states() == ["free"]
    assert not harness.in_line("j1")
    assert not harness.leases.is_held(lease.ref)


def test_giving_back_a_lease_costs_nothing(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("a1", "a2", tenant="a")
    harness.push("b1", tenant="b")
    lease = harness.must_claim()
    harness.wait(60)
    harness.release(lease, "free")
    assert harness.must_claim().job_id == "a2"


def test_suspect_shuts_the_slot_and_keeps_the_job_until_the_commit(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2")
    lease = harness.must_claim()
    harness.release(lease, "suspect")
    assert harness.states() == ["quarantined"]
    assert harness.in_line("j1")
    harness.leases.confirm_ends([lease.ref])
    assert harness.states() == ["quarantined"]
    assert not harness.in_line("j1")
    assert harness.claim() is None
    harness.leases.free_slot(lease.slot)
    assert harness.must_claim().job_id == "j2"


def test_adopt_lets_the_next_claim_go_on_with_the_same_attempt(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2")
    lease = harness.must_claim()
    harness.wait(2)
    harness.release(lease, "adopt")
    assert harness.states() == ["adoptable"]
    assert harness.in_line("j1")
    adopted = harness.must_claim("asked", worker="w2")
    assert adopted == replace(lease, adopted=True)
    assert harness.claim("asked", worker="w2") == adopted


def test_adoptable_leases_are_claimed_before_tickets(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2")
    harness.release(harness.must_claim(), "adopt")
    assert [harness.must_claim().adopted, harness.must_claim().adopted] == [True, False]


def test_a_taken_over_lease_is_valid_under_its_new_epoch_only(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.release(lease, "adopt")
    adopted = harness.must_claim(worker="w2")
    assert harness.leases.take_over(adopted.ref, worker="w2", new_epoch=2)
    harness.release(lease, worker="w1")
    assert harness.states() == ["leased"]
    assert not harness.leases.is_held(lease.ref)
    harness.leases.release(ref_of(lease, epoch=2), ReleaseMode.ENDED, worker="w2")
    assert harness.states() == ["settling"]


def test_a_handed_over_lease_cannot_be_ended_until_it_is_claimed(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.release(lease, "adopt")
    for mode in ReleaseMode:
        harness.leases.release(lease.ref, mode, worker="w1")
    assert harness.states() == ["adoptable"]


def test_only_one_worker_takes_over(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.release(lease, "adopt")
    harness.must_claim(worker="w2")
    assert not harness.leases.take_over(lease.ref, worker="w3", new_epoch=2)
    assert harness.leases.take_over(lease.ref, worker="w2", new_epoch=2)
    assert not harness.leases.take_over(lease.ref, worker="w3", new_epoch=2)


def test_an_adoptable_lease_can_be_taken_over_without_a_claim(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.release(lease, "adopt")
    assert harness.leases.take_over(lease.ref, worker="sweep", new_epoch=4)
    harness.leases.release(ref_of(lease, epoch=4), ReleaseMode.ADOPT, worker="sweep")
    assert harness.must_claim().epoch == 4


@pytest.mark.parametrize(
    "wrong", [{"job_id": "other"}, {"attempt_id": "other"}, {"epoch": 2}, {"slot": "s1/1"}]
)
@pytest.mark.parametrize("mode", list(ReleaseMode))
def test_a_release_under_another_ref_changes_nothing(
    harness: LeaseHarness, mode: ReleaseMode, wrong: dict[str, object]
) -> None:
    harness.server(slots=2)
    harness.push("j1")
    lease = harness.must_claim()
    before = harness.states()
    harness.leases.release(ref_of(lease, **wrong), mode, worker="w1")
    assert harness.states() == before
    assert harness.leases.is_held(lease.ref)


@pytest.mark.parametrize("mode", list(ReleaseMode))
def test_another_worker_cannot_end_a_lease(harness: LeaseHarness, mode: ReleaseMode) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.leases.release(lease.ref, mode, worker="w2")
    assert harness.states() == ["leased"]


def test_only_a_clean_end_hands_the_slot_on(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2")
    with pytest.raises(ValueError, match="ENDED"):
        harness.release(harness.must_claim(), "suspect", next_attempt_id="next")


# -- renewing ---------------------------------------------------------------------------------------------


def test_renewing_keeps_leases_and_unconfirmed_ends_from_running_out(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2")
    running, ended = harness.must_claim(), harness.must_claim()
    harness.release(ended)
    for _ in range(4):
        harness.wait(5)
        assert harness.leases.renew("w1", [running], [ended]) == []
        assert harness.leases.expired() == []


def test_renew_returns_leases_held_by_another_worker(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2")
    mine, theirs = harness.must_claim(), harness.must_claim(worker="w2")
    assert harness.leases.renew("w1", [mine, theirs], []) == [theirs.ref]


def test_renew_returns_ended_leases(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.release(lease, "free")
    assert harness.leases.renew("w1", [lease], []) == [lease.ref]


def test_a_lease_that_just_began_to_settle_is_not_lost(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.release(lease)
    assert harness.leases.renew("w1", [lease], []) == []


def test_a_lease_that_is_about_to_settle_is_renewed_as_an_end(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.wait(14)
    assert harness.leases.renew("w1", [], [lease]) == []
    assert harness.leases.slots("s1")[0].expires_in_seconds == 15.0


def test_a_renewal_never_takes_a_handed_over_lease_back(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.release(lease, "adopt")
    assert harness.leases.renew("w1", [lease], []) == [lease.ref]
    assert harness.states() == ["adoptable"]


def test_granted_returns_an_existing_lease_and_grants_none(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2")
    lease = harness.must_claim()
    assert harness.leases.granted(lease.attempt_id, worker=WORKER) == lease
    assert harness.leases.granted(lease.attempt_id, worker="another") is None
    assert harness.leases.granted("nobody", worker=WORKER) is None
    assert harness.states() == ["leased", "free"]
    harness.release(lease, "free")
    assert harness.leases.granted(lease.attempt_id, worker=WORKER) is None


def test_an_end_that_was_refused_frees_no_slot_of_a_run_that_is_adopted(harness: LeaseHarness) -> None:
    """Its worker settles it as usual, but another worker holds the attempt by then."""
    harness.server(slots=1)
    harness.push("a")
    lease = harness.must_claim()
    harness.release(lease, "adopt")
    harness.leases.confirm_ends([lease.ref])
    assert harness.states() == ["adoptable"]
    adopted = harness.must_claim(worker="w2")
    harness.leases.confirm_ends([lease.ref])
    assert harness.leases.take_over(adopted.ref, worker="w2", new_epoch=2)
    assert harness.states() == ["leased"]
