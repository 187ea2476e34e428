"""A lease whose adoption failed rests, so that it does not block tickets that can run."""

from __future__ import annotations

from gpus.protocol import Lease, ReleaseMode
from tests.gpus.leasing.rig import Rig, counts, ref_of


def handed_over(rig: Rig, slots: int = 1) -> Lease:
    rig.server(slots=slots)
    rig.push("a")
    lease = rig.must_claim()
    rig.release(lease, "adopt")
    return lease


def fail_to_adopt(rig: Rig) -> None:
    claimed = rig.must_claim(worker="w2")
    assert claimed.adopted
    rig.leases.release(claimed.ref, ReleaseMode.ADOPT, worker="w2", rest_seconds=2.0)


def seconds_of_rest(rig: Rig) -> float:
    began = rig.now_ms
    while rig.claim("probe", worker="w3") is None:
        rig.wait(0.5)
    rig.leases.release(rig.must_claim("probe", worker="w3").ref, ReleaseMode.ADOPT, worker="w3")
    return (rig.now_ms - began) / 1000


def test_a_handed_over_lease_is_adoptable_at_once(rig: Rig) -> None:
    handed_over(rig)
    assert rig.must_claim(worker="w2").adopted


def test_after_a_failed_adoption_the_next_claim_gets_a_free_slot(rig: Rig) -> None:
    handed_over(rig, slots=2)
    fail_to_adopt(rig)
    rig.push("b")
    lease = rig.must_claim(worker="w2")
    assert (lease.job_id, lease.adopted) == ("b", False)


def test_the_rest_doubles_from_two_to_thirty_seconds(rig: Rig) -> None:
    handed_over(rig)
    rests = []
    for _ in range(6):
        fail_to_adopt(rig)
        rests.append(seconds_of_rest(rig))
    assert rests == [2, 4, 8, 16, 30, 30]


def test_a_successful_adoption_resets_the_rest(rig: Rig) -> None:
    handed_over(rig)
    fail_to_adopt(rig)
    assert seconds_of_rest(rig) == 2
    adopted = rig.must_claim(worker="w2")
    assert rig.leases.take_over(adopted.ref, worker="w2", new_epoch=2)
    rig.leases.release(ref_of(adopted, epoch=2), ReleaseMode.ADOPT, worker="w2")
    fail_to_adopt(rig)
    assert seconds_of_rest(rig) == 2


def test_the_old_holder_may_renew_a_resting_lease(rig: Rig) -> None:
    rig.server()
    rig.push("a")
    lease = rig.must_claim()
    rig.release(lease, "adopt")
    fail_to_adopt(rig)
    assert rig.leases.take_over(lease.ref, worker="w1", new_epoch=2)
    assert rig.states() == ["leased"]


def test_a_rest_survives_a_change_of_the_server(rig: Rig) -> None:
    handed_over(rig)
    fail_to_adopt(rig)
    rig.server(slots=2)
    assert rig.claim(worker="w2") is None
    rig.wait(2.1)
    assert rig.must_claim(worker="w2").adopted


def test_the_fill_counts_a_wake_for_a_lease_after_its_rest(rig: Rig) -> None:
    handed_over(rig)
    fail_to_adopt(rig)
    assert counts(rig.leases.fill()) == {("pool", None): 1}
