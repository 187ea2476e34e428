"""Expiry never frees a slot: the sweep lists expired leases, and its decision applies."""

from __future__ import annotations

import pytest

from gpus.protocol import ExpiryVerdict, Lease
from tests.gpus.leasing.lease_harness import LeaseHarness, counts, ref_of
from tests.support.lease_expiry import expire

ADOPTABLE, QUARANTINED, FREE = ExpiryVerdict.ADOPTABLE, ExpiryVerdict.QUARANTINED, ExpiryVerdict.FREE


def expired_lease(harness: LeaseHarness) -> Lease:
    harness.server()
    harness.push("j1", "j2")
    lease = harness.must_claim()
    expire(harness)
    return lease


def test_an_expired_lease_is_only_reported(harness: LeaseHarness) -> None:
    lease = expired_lease(harness)
    (row,) = harness.leases.expired()
    assert (row.ref, row.pool, row.model, row.tenant) == (lease.ref, "pool", "flux", "t1")
    assert (row.is_ending, row.worker, row.held_seconds) == (False, "w1", 16.0)
    assert harness.states() == ["leased"]
    assert harness.claim() is None


def test_an_unconfirmed_end_expires_too(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.release(lease, gpu_seconds=3.5)
    expire(harness)
    (row,) = harness.leases.expired()
    assert (row.ref, row.is_ending, row.worker, row.held_seconds) == (lease.ref, True, "w1", 3.5)


def test_the_oldest_are_reported_first_and_no_more_than_asked_for(harness: LeaseHarness) -> None:
    harness.server(slots=3)
    harness.push("j1", "j2", "j3")
    leases = []
    for _ in range(3):
        leases.append(harness.must_claim())
        harness.wait(1)
    expire(harness, 18)
    assert [row.ref for row in harness.leases.expired(limit=2)] == [leases[0].ref, leases[1].ref]


def test_after_a_gap_live_keepers_have_time_to_renew(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2")
    living, dead = harness.must_claim(), harness.must_claim(worker="dead")
    harness.leases.expired()
    harness.wait(60)  # Redis was paused, or beat was down
    assert harness.leases.expired() == []
    assert not harness.leases.resolve_expired(living.ref, QUARANTINED)
    harness.wait(2)
    assert harness.leases.renew("w1", [living], []) == []
    expire(harness, 12)
    assert harness.leases.expired() == []
    harness.wait(1)
    assert [row.ref for row in harness.leases.expired()] == [dead.ref]


def test_a_decision_applies_only_to_a_lease_still_expired_under_its_ref(harness: LeaseHarness) -> None:
    lease = expired_lease(harness)
    assert not harness.leases.resolve_expired(ref_of(lease, epoch=2), QUARANTINED)
    assert not harness.leases.resolve_expired(ref_of(lease, attempt_id="other"), QUARANTINED)
    harness.leases.renew("w1", [lease], [])
    for verdict in ExpiryVerdict:
        assert not harness.leases.resolve_expired(lease.ref, verdict)
    assert harness.states() == ["leased"]


def test_quarantined_shuts_the_slot_and_lets_the_job_go(harness: LeaseHarness) -> None:
    lease = expired_lease(harness)
    assert harness.leases.resolve_expired(lease.ref, QUARANTINED)
    assert not harness.leases.resolve_expired(lease.ref, QUARANTINED)
    assert harness.states() == ["quarantined"]
    assert not harness.in_line("j1")
    assert harness.claim() is None


def test_free_gives_the_slot_to_the_next(harness: LeaseHarness) -> None:
    lease = expired_lease(harness)
    assert harness.leases.resolve_expired(lease.ref, FREE)
    assert not harness.in_line("j1")
    assert harness.must_claim().job_id == "j2"


def test_adoptable_keeps_the_job_out_of_line_and_waits_for_a_claim(harness: LeaseHarness) -> None:
    lease = expired_lease(harness)
    assert harness.leases.resolve_expired(lease.ref, ADOPTABLE)
    assert harness.states() == ["adoptable"]
    assert harness.in_line("j1")
    expire(harness)
    assert harness.leases.expired() == []
    adopted = harness.must_claim(worker="w2")
    assert (adopted.attempt_id, adopted.adopted) == (lease.attempt_id, True)
    assert harness.leases.renew("w1", [lease], []) == [lease.ref]


def test_a_holder_that_comes_back_in_time_keeps_its_lease(harness: LeaseHarness) -> None:
    lease = expired_lease(harness)
    harness.leases.resolve_expired(lease.ref, ADOPTABLE)
    assert harness.leases.renew("w1", [lease], []) == []
    assert harness.states() == ["leased"]
    claim = harness.claim(worker="w2")
    assert claim is None


def test_a_lease_is_adoptable_again_if_its_adopter_dies_before_take_over(harness: LeaseHarness) -> None:
    lease = expired_lease(harness)
    harness.leases.resolve_expired(lease.ref, ADOPTABLE)
    harness.must_claim("asked", worker="w2")
    expire(harness)
    assert [row.worker for row in harness.leases.expired()] == ["w2"]
    assert harness.leases.resolve_expired(lease.ref, ADOPTABLE)
    assert harness.claim("asked", worker="w2") is None
    assert harness.must_claim(worker="w3").attempt_id == lease.attempt_id


def test_a_lost_lease_is_charged_for_the_time_held(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("a1", "a2", tenant="a")
    harness.push(*(f"b{i:02}" for i in range(20)), tenant="b")
    lease = harness.must_claim()
    assert lease.job_id == "a1"
    expire(harness)
    harness.leases.resolve_expired(lease.ref, FREE)
    assert harness.run_all().index("a2") == 16


def test_an_expired_end_made_adoptable_keeps_its_slot(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.release(lease, gpu_seconds=30)
    expire(harness)
    assert harness.leases.resolve_expired(lease.ref, ADOPTABLE)
    adopted = harness.must_claim(worker="w2")
    assert (adopted.attempt_id, adopted.adopted, adopted.estimate_seconds) == (lease.attempt_id, True, 30.0)


def test_an_expired_end_is_not_adoptable_after_its_slot_was_leased_on(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2")
    lease = harness.must_claim()
    harness.release(lease, next_attempt_id="next")
    expire(harness)
    assert not harness.leases.resolve_expired(lease.ref, ADOPTABLE)
    assert harness.leases.resolve_expired(lease.ref, QUARANTINED)
    assert harness.states() == ["leased"]
    assert not harness.in_line("j1")


@pytest.mark.parametrize(("verdict", "state"), [(FREE, "free"), (QUARANTINED, "quarantined")])
def test_an_expired_end_can_free_or_quarantine_its_slot(
    harness: LeaseHarness, verdict: ExpiryVerdict, state: str
) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.release(lease)
    expire(harness)
    assert harness.leases.resolve_expired(lease.ref, verdict)
    assert harness.states() == [state]
    assert not harness.in_line("j1")


def test_settling_an_expired_end_frees_its_slot(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2")
    lease = harness.must_claim()
    harness.release(lease)
    expire(harness)
    harness.leases.fill()
    assert counts(harness.leases.confirm_ends([lease.ref])) == {("pool", None): 1}


# -- quarantine -------------------------------------------------------------------------------------------


def test_a_quarantined_slot_is_not_leased_until_proven_free(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    harness.leases.quarantine("s1/0", "old")
    harness.leases.quarantine("s1/0", "old")
    assert harness.claim() is None
    assert counts(harness.leases.free_slot("s1/0")) == {("pool", None): 1}
    assert harness.leases.free_slot("s1/0") == ()
    assert harness.must_claim().slot == "s1/0"


def test_a_lease_of_another_attempt_is_not_touched_by_a_late_quarantine(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2")
    lease = harness.must_claim()
    harness.leases.quarantine(lease.slot, "old")
    assert harness.states() == ["leased"]
    harness.release(lease)
    harness.leases.quarantine(lease.slot, "old")
    assert harness.states() == ["settling"]


def test_a_lease_of_the_quarantined_attempt_ends(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.leases.quarantine(lease.slot, lease.attempt_id)
    assert harness.states() == ["quarantined"]
    assert not harness.in_line("j1")
    assert harness.leases.renew("w1", [lease], []) == [lease.ref]


def test_a_slot_of_a_server_that_is_not_known_yet_can_be_quarantined(harness: LeaseHarness) -> None:
    harness.leases.quarantine("later/1", "old")
    harness.server("later", slots=3)
    assert harness.states("later") == ["free", "quarantined", "free"]


def test_free_slot_frees_only_quarantined_slots(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.leases.free_slot(lease.slot)
    assert harness.states() == ["leased"]
