"""Expiry never frees a slot: the sweep lists expired leases, and its decision applies."""

from __future__ import annotations

import pytest

from gpus.protocol import ExpiryVerdict, Lease
from tests.gpus.leasing.rig import Rig, counts, ref_of
from tests.support.lease_expiry import expire

ADOPTABLE, QUARANTINED, FREE = ExpiryVerdict.ADOPTABLE, ExpiryVerdict.QUARANTINED, ExpiryVerdict.FREE


def expired_lease(rig: Rig) -> Lease:
    rig.server()
    rig.push("j1", "j2")
    lease = rig.must_claim()
    expire(rig)
    return lease


def test_an_expired_lease_is_only_reported(rig: Rig) -> None:
    lease = expired_lease(rig)
    (row,) = rig.leases.expired()
    assert (row.ref, row.pool, row.model, row.tenant) == (lease.ref, "pool", "flux", "t1")
    assert (row.is_ending, row.worker, row.held_seconds) == (False, "w1", 16.0)
    assert rig.states() == ["leased"]
    assert rig.claim() is None


def test_an_unconfirmed_end_expires_too(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.release(lease, gpu_seconds=3.5)
    expire(rig)
    (row,) = rig.leases.expired()
    assert (row.ref, row.is_ending, row.worker, row.held_seconds) == (lease.ref, True, "w1", 3.5)


def test_the_oldest_are_reported_first_and_no_more_than_asked_for(rig: Rig) -> None:
    rig.server(slots=3)
    rig.push("j1", "j2", "j3")
    leases = []
    for _ in range(3):
        leases.append(rig.must_claim())
        rig.wait(1)
    expire(rig, 18)
    assert [row.ref for row in rig.leases.expired(limit=2)] == [leases[0].ref, leases[1].ref]


def test_after_a_gap_live_keepers_have_time_to_renew(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("j1", "j2")
    living, dead = rig.must_claim(), rig.must_claim(worker="dead")
    rig.leases.expired()
    rig.wait(60)  # Redis was paused, or beat was down
    assert rig.leases.expired() == []
    assert not rig.leases.resolve_expired(living.ref, QUARANTINED)
    rig.wait(2)
    assert rig.leases.renew("w1", [living], []) == []
    expire(rig, 12)
    assert rig.leases.expired() == []
    rig.wait(1)
    assert [row.ref for row in rig.leases.expired()] == [dead.ref]


def test_a_decision_applies_only_to_a_lease_still_expired_under_its_ref(rig: Rig) -> None:
    lease = expired_lease(rig)
    assert not rig.leases.resolve_expired(ref_of(lease, epoch=2), QUARANTINED)
    assert not rig.leases.resolve_expired(ref_of(lease, attempt_id="other"), QUARANTINED)
    rig.leases.renew("w1", [lease], [])
    for verdict in ExpiryVerdict:
        assert not rig.leases.resolve_expired(lease.ref, verdict)
    assert rig.states() == ["leased"]


def test_quarantined_shuts_the_slot_and_lets_the_job_go(rig: Rig) -> None:
    lease = expired_lease(rig)
    assert rig.leases.resolve_expired(lease.ref, QUARANTINED)
    assert not rig.leases.resolve_expired(lease.ref, QUARANTINED)
    assert rig.states() == ["quarantined"]
    assert not rig.in_line("j1")
    assert rig.claim() is None


def test_free_gives_the_slot_to_the_next(rig: Rig) -> None:
    lease = expired_lease(rig)
    assert rig.leases.resolve_expired(lease.ref, FREE)
    assert not rig.in_line("j1")
    assert rig.must_claim().job_id == "j2"


def test_adoptable_keeps_the_job_out_of_line_and_waits_for_a_claim(rig: Rig) -> None:
    lease = expired_lease(rig)
    assert rig.leases.resolve_expired(lease.ref, ADOPTABLE)
    assert rig.states() == ["adoptable"]
    assert rig.in_line("j1")
    expire(rig)
    assert rig.leases.expired() == []
    adopted = rig.must_claim(worker="w2")
    assert (adopted.attempt_id, adopted.adopted) == (lease.attempt_id, True)
    assert rig.leases.renew("w1", [lease], []) == [lease.ref]


def test_a_holder_that_comes_back_in_time_keeps_its_lease(rig: Rig) -> None:
    lease = expired_lease(rig)
    rig.leases.resolve_expired(lease.ref, ADOPTABLE)
    assert rig.leases.renew("w1", [lease], []) == []
    assert rig.states() == ["leased"]
    claim = rig.claim(worker="w2")
    assert claim is None


def test_a_lease_is_adoptable_again_if_its_adopter_dies_before_take_over(rig: Rig) -> None:
    lease = expired_lease(rig)
    rig.leases.resolve_expired(lease.ref, ADOPTABLE)
    rig.must_claim("asked", worker="w2")
    expire(rig)
    assert [row.worker for row in rig.leases.expired()] == ["w2"]
    assert rig.leases.resolve_expired(lease.ref, ADOPTABLE)
    assert rig.claim("asked", worker="w2") is None
    assert rig.must_claim(worker="w3").attempt_id == lease.attempt_id


def test_a_lost_lease_is_charged_for_the_time_held(rig: Rig) -> None:
    rig.server()
    rig.push("a1", "a2", tenant="a")
    rig.push(*(f"b{i:02}" for i in range(20)), tenant="b")
    lease = rig.must_claim()
    assert lease.job_id == "a1"
    expire(rig)
    rig.leases.resolve_expired(lease.ref, FREE)
    assert rig.run_all().index("a2") == 16


def test_an_expired_end_made_adoptable_keeps_its_slot(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.release(lease, gpu_seconds=30)
    expire(rig)
    assert rig.leases.resolve_expired(lease.ref, ADOPTABLE)
    adopted = rig.must_claim(worker="w2")
    assert (adopted.attempt_id, adopted.adopted, adopted.estimate_seconds) == (lease.attempt_id, True, 30.0)


def test_an_expired_end_is_not_adoptable_after_its_slot_was_leased_on(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2")
    lease = rig.must_claim()
    rig.release(lease, next_attempt_id="next")
    expire(rig)
    assert not rig.leases.resolve_expired(lease.ref, ADOPTABLE)
    assert rig.leases.resolve_expired(lease.ref, QUARANTINED)
    assert rig.states() == ["leased"]
    assert not rig.in_line("j1")


@pytest.mark.parametrize(("verdict", "state"), [(FREE, "free"), (QUARANTINED, "quarantined")])
def test_an_expired_end_can_free_or_quarantine_its_slot(rig: Rig, verdict: ExpiryVerdict, state: str) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.release(lease)
    expire(rig)
    assert rig.leases.resolve_expired(lease.ref, verdict)
    assert rig.states() == [state]
    assert not rig.in_line("j1")


def test_settling_an_expired_end_frees_its_slot(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2")
    lease = rig.must_claim()
    rig.release(lease)
    expire(rig)
    rig.leases.fill()
    assert counts(rig.leases.confirm_ends([lease.ref])) == {("pool", None): 1}


# -- quarantine -------------------------------------------------------------------------------------------


def test_a_quarantined_slot_is_not_leased_until_proven_free(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    rig.leases.quarantine("s1/0", "old")
    rig.leases.quarantine("s1/0", "old")
    assert rig.claim() is None
    assert counts(rig.leases.free_slot("s1/0")) == {("pool", None): 1}
    assert rig.leases.free_slot("s1/0") == ()
    assert rig.must_claim().slot == "s1/0"


def test_a_lease_of_another_attempt_is_not_touched_by_a_late_quarantine(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2")
    lease = rig.must_claim()
    rig.leases.quarantine(lease.slot, "old")
    assert rig.states() == ["leased"]
    rig.release(lease)
    rig.leases.quarantine(lease.slot, "old")
    assert rig.states() == ["settling"]


def test_a_lease_of_the_quarantined_attempt_ends(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.leases.quarantine(lease.slot, lease.attempt_id)
    assert rig.states() == ["quarantined"]
    assert not rig.in_line("j1")
    assert rig.leases.renew("w1", [lease], []) == [lease.ref]


def test_a_slot_of_a_server_that_is_not_known_yet_can_be_quarantined(rig: Rig) -> None:
    rig.leases.quarantine("later/1", "old")
    rig.server("later", slots=3)
    assert rig.states("later") == ["free", "quarantined", "free"]


def test_free_slot_frees_only_quarantined_slots(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.leases.free_slot(lease.slot)
    assert rig.states() == ["leased"]
