"""A server's count limits running jobs: jobs above a lowered count close slots below."""

from __future__ import annotations

from gpus.protocol import ReleaseMode
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness, counts


def test_fewer_slots_get_no_new_lease_above_the_number_and_running_jobs_finish(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2", "j3", "j4")
    first, second = harness.must_claim(), harness.must_claim()
    harness.server(slots=1)
    assert harness.leases.renew("w1", [second], []) == []
    assert harness.release(second, next_attempt_id="no") is None
    harness.leases.confirm_ends([second.ref])
    assert harness.states() == ["leased"]
    assert harness.release(first, next_attempt_id="yes") is not None
    harness.server(slots=2)
    assert harness.must_claim().slot == "s1/1"


def test_runs_above_a_lowered_count_close_slots_below(harness: LeaseHarness) -> None:
    harness.server(slots=3)
    harness.push(*(f"j{number}" for number in range(9)))
    lowest, middle, upper = harness.must_claim(), harness.must_claim(), harness.must_claim()
    harness.server(slots=1)
    assert harness.release(lowest, next_attempt_id="no") is None
    harness.leases.confirm_ends([lowest.ref])
    assert harness.states() == ["off", "leased", "leased"]
    assert harness.claim() is None

    harness.release(middle, ReleaseMode.SUSPECT)
    harness.leases.confirm_ends([middle.ref])
    harness.release(upper)
    assert counts(harness.leases.confirm_ends([upper.ref])) == {}
    assert harness.states() == ["off", "quarantined"]
    assert harness.claim() is None

    assert counts(harness.leases.free_slot("s1/1")) == {(POOL, None): 1}
    assert harness.states() == ["free"]
    assert harness.must_claim().slot == "s1/0"


def test_a_rebuild_respects_the_count_with_runs_above_it(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2", "j3")
    lowest, upper = harness.must_claim(), harness.must_claim()
    harness.server(slots=1)
    harness.release(lowest)
    harness.leases.confirm_ends([lowest.ref])
    harness.leases.begin_rebuild("again")
    harness.leases.wipe("again")
    harness.server(slots=1)
    assert harness.leases.restore_lease(upper)
    harness.leases.open_generation("again")
    assert harness.states() == ["off", "leased"]
    harness.push("j3")
    assert harness.claim() is None
