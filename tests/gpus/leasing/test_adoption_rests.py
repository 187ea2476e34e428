"""A lease whose adoption failed rests, so that it does not block tickets that can run."""

from __future__ import annotations

from gpus.protocol import Lease, ReleaseMode
from tests.gpus.leasing.lease_harness import LeaseHarness, counts, ref_of


def handed_over(harness: LeaseHarness, slots: int = 1) -> Lease:
    harness.server(slots=slots)
    harness.push("a")
    lease = harness.must_claim()
    harness.release(lease, "adopt")
    return lease


def fail_to_adopt(harness: LeaseHarness) -> None:
    claimed = harness.must_claim(worker="w2")
    assert claimed.adopted
    harness.leases.release(claimed.ref, ReleaseMode.ADOPT, worker="w2", rest_seconds=2.0)


def seconds_of_rest(harness: LeaseHarness) -> float:
    began = harness.now_ms
    while harness.claim("probe", worker="w3") is None:
        harness.wait(0.5)
    harness.leases.release(harness.must_claim("probe", worker="w3").ref, ReleaseMode.ADOPT, worker="w3")
    return (harness.now_ms - began) / 1000


def test_a_handed_over_lease_is_adoptable_at_once(harness: LeaseHarness) -> None:
    handed_over(harness)
    assert harness.must_claim(worker="w2").adopted


def test_after_a_failed_adoption_the_next_claim_gets_a_free_slot(harness: LeaseHarness) -> None:
    handed_over(harness, slots=2)
    fail_to_adopt(harness)
    harness.push("b")
    lease = harness.must_claim(worker="w2")
    assert (lease.job_id, lease.adopted) == ("b", False)


def test_the_rest_doubles_from_two_to_thirty_seconds(harness: LeaseHarness) -> None:
    handed_over(harness)
    rests = []
    for _ in range(6):
        fail_to_adopt(harness)
        rests.append(seconds_of_rest(harness))
    assert rests == [2, 4, 8, 16, 30, 30]


def test_a_successful_adoption_resets_the_rest(harness: LeaseHarness) -> None:
    handed_over(harness)
    fail_to_adopt(harness)
    assert seconds_of_rest(harness) == 2
    adopted = harness.must_claim(worker="w2")
    assert harness.leases.take_over(adopted.ref, worker="w2", new_epoch=2)
    harness.leases.release(ref_of(adopted, epoch=2), ReleaseMode.ADOPT, worker="w2")
    fail_to_adopt(harness)
    assert seconds_of_rest(harness) == 2


def test_the_old_holder_may_renew_a_resting_lease(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("a")
    lease = harness.must_claim()
    harness.release(lease, "adopt")
    fail_to_adopt(harness)
    assert harness.leases.take_over(lease.ref, worker="w1", new_epoch=2)
    assert harness.states() == ["leased"]


def test_a_rest_survives_a_change_of_the_server(harness: LeaseHarness) -> None:
    handed_over(harness)
    fail_to_adopt(harness)
    harness.server(slots=2)
    assert harness.claim(worker="w2") is None
    harness.wait(2.1)
    assert harness.must_claim(worker="w2").adopted


def test_the_fill_counts_a_wake_for_a_lease_after_its_rest(harness: LeaseHarness) -> None:
    handed_over(harness)
    fail_to_adopt(harness)
    assert counts(harness.leases.fill()) == {("pool", None): 1}
