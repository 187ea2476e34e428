"""Redis may run a script whose reply is lost: a second call changes nothing more."""

from __future__ import annotations

import pytest

from gpus.protocol import ReleaseMode
from tests.gpus.leasing.lease_harness import LeaseHarness, ref_of


def test_a_claim_sent_twice_gives_the_same_lease(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2")
    assert harness.claim("same") == harness.claim("same")
    assert harness.waiting() == 1


def test_a_claim_with_another_workers_attempt_gets_no_lease(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1")
    harness.claim("same")
    assert harness.claim("same", worker="w2") is None


def test_a_release_sent_twice_gives_the_same_next_lease(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2", "j3")
    lease = harness.must_claim()
    first = harness.release(lease, gpu_seconds=5, next_attempt_id="next")
    assert first is not None
    assert harness.release(lease, gpu_seconds=5, next_attempt_id="next") == first
    assert harness.waiting() == 1
    assert harness.leases.estimate_seconds("flux", "t1") == 5.0


@pytest.mark.parametrize("mode", list(ReleaseMode))
def test_a_release_sent_twice_changes_nothing_more(harness: LeaseHarness, mode: ReleaseMode) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2")
    lease = harness.must_claim()
    harness.leases.release(lease.ref, mode, worker="w1", gpu_seconds=3)
    before = (harness.states(), harness.in_line("j1"), harness.leases.estimate_seconds("flux", "t1"))
    harness.wait(1)
    assert harness.leases.release(lease.ref, mode, worker="w1", gpu_seconds=3) is None
    assert (harness.states(), harness.in_line("j1"), harness.leases.estimate_seconds("flux", "t1")) == before


def test_settled_sent_twice_does_not_free_a_slot_leased_since(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2")
    lease = harness.must_claim()
    harness.release(lease)
    harness.leases.confirm_ends([lease.ref])
    harness.must_claim()
    assert harness.leases.confirm_ends([lease.ref]) == ()
    assert harness.states() == ["leased"]


def test_settled_needs_the_whole_ref(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.release(lease)
    for wrong in ({"job_id": "other"}, {"epoch": 2}, {"slot": "s1/1"}):
        harness.leases.confirm_ends([ref_of(lease, **wrong)])
    assert harness.states() == ["settling"]


def test_a_take_over_sent_twice_is_still_the_workers(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    harness.release(lease, "adopt")
    harness.must_claim("asked", worker="w2")
    assert harness.leases.take_over(lease.ref, worker="w2", new_epoch=2)
    assert harness.leases.take_over(lease.ref, worker="w2", new_epoch=2)
