"""A server's count limits running jobs: jobs above a lowered count close slots below."""

from __future__ import annotations

from gpus.protocol import ReleaseMode
from tests.gpus.leasing.rig import POOL, Rig, counts


def test_fewer_slots_get_no_new_lease_above_the_number_and_running_jobs_finish(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("j1", "j2", "j3", "j4")
    first, second = rig.must_claim(), rig.must_claim()
    rig.server(slots=1)
    assert rig.leases.renew("w1", [second], []) == []
    assert rig.release(second, next_attempt_id="no") is None
    rig.leases.confirm_ends([second.ref])
    assert rig.states() == ["leased"]
    assert rig.release(first, next_attempt_id="yes") is not None
    rig.server(slots=2)
    assert rig.must_claim().slot == "s1/1"


def test_runs_above_a_lowered_count_close_slots_below(rig: Rig) -> None:
    rig.server(slots=3)
    rig.push(*(f"j{number}" for number in range(9)))
    lowest, middle, upper = rig.must_claim(), rig.must_claim(), rig.must_claim()
    rig.server(slots=1)
    assert rig.release(lowest, next_attempt_id="no") is None
    rig.leases.confirm_ends([lowest.ref])
    assert rig.states() == ["off", "leased", "leased"]
    assert rig.claim() is None

    rig.release(middle, ReleaseMode.SUSPECT)
    rig.leases.confirm_ends([middle.ref])
    rig.release(upper)
    assert counts(rig.leases.confirm_ends([upper.ref])) == {}
    assert rig.states() == ["off", "quarantined"]
    assert rig.claim() is None

    assert counts(rig.leases.free_slot("s1/1")) == {(POOL, None): 1}
    assert rig.states() == ["free"]
    assert rig.must_claim().slot == "s1/0"


def test_a_rebuild_respects_the_count_with_runs_above_it(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("j1", "j2", "j3")
    lowest, upper = rig.must_claim(), rig.must_claim()
    rig.server(slots=1)
    rig.release(lowest)
    rig.leases.confirm_ends([lowest.ref])
    rig.leases.begin_rebuild("again")
    rig.leases.wipe("again")
    rig.server(slots=1)
    assert rig.leases.restore_lease(upper)
    rig.leases.open_generation("again")
    assert rig.states() == ["off", "leased"]
    rig.push("j3")
    assert rig.claim() is None
