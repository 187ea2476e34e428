"""Redis may run a script whose reply is lost: a second call changes nothing more."""

from __future__ import annotations

import pytest

from gpus.protocol import ReleaseMode
from tests.gpus.leasing.rig import Rig, ref_of


def test_a_claim_sent_twice_gives_the_same_lease(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("j1", "j2")
    assert rig.claim("same") == rig.claim("same")
    assert rig.waiting() == 1


def test_a_claim_with_another_workers_attempt_gets_no_lease(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("j1")
    rig.claim("same")
    assert rig.claim("same", worker="w2") is None


def test_a_release_sent_twice_gives_the_same_next_lease(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2", "j3")
    lease = rig.must_claim()
    first = rig.release(lease, gpu_seconds=5, next_attempt_id="next")
    assert first is not None
    assert rig.release(lease, gpu_seconds=5, next_attempt_id="next") == first
    assert rig.waiting() == 1
    assert rig.leases.estimate_seconds("flux", "t1") == 5.0


@pytest.mark.parametrize("mode", list(ReleaseMode))
def test_a_release_sent_twice_changes_nothing_more(rig: Rig, mode: ReleaseMode) -> None:
    rig.server(slots=2)
    rig.push("j1", "j2")
    lease = rig.must_claim()
    rig.leases.release(lease.ref, mode, worker="w1", gpu_seconds=3)
    before = (rig.states(), rig.in_line("j1"), rig.leases.estimate_seconds("flux", "t1"))
    rig.wait(1)
    assert rig.leases.release(lease.ref, mode, worker="w1", gpu_seconds=3) is None
    assert (rig.states(), rig.in_line("j1"), rig.leases.estimate_seconds("flux", "t1")) == before


def test_settled_sent_twice_does_not_free_a_slot_leased_since(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2")
    lease = rig.must_claim()
    rig.release(lease)
    rig.leases.confirm_ends([lease.ref])
    rig.must_claim()
    assert rig.leases.confirm_ends([lease.ref]) == ()
    assert rig.states() == ["leased"]


def test_settled_needs_the_whole_ref(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.release(lease)
    for wrong in ({"job_id": "other"}, {"epoch": 2}, {"slot": "s1/1"}):
        rig.leases.confirm_ends([ref_of(lease, **wrong)])
    assert rig.states() == ["settling"]


def test_a_take_over_sent_twice_is_still_the_workers(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    rig.release(lease, "adopt")
    rig.must_claim("asked", worker="w2")
    assert rig.leases.take_over(lease.ref, worker="w2", new_epoch=2)
    assert rig.leases.take_over(lease.ref, worker="w2", new_epoch=2)
