"""A flushed, new or failed-over Redis grants no lease before the index is rebuilt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpus.errors import LeasingUnavailable
from gpus.protocol import Lease, PushOutcome, ReleaseMode
from tests.gpus.leasing.rebuild_rig import begin, database_lease, lost
from tests.gpus.leasing.rig import POOL, Rig

__all__ = ["lost"]

CALLS: dict[str, Callable[[Rig, Lease], Any]] = {
    "claim": lambda rig, lease: rig.claim(),
    "push": lambda rig, lease: rig.push("new"),
    "remove": lambda rig, lease: rig.leases.remove(POOL, rig.ticket("j")),
    "release": lambda rig, lease: rig.release(lease),
    "renew": lambda rig, lease: rig.leases.renew("w1", [lease], []),
    "confirm_ends": lambda rig, lease: rig.leases.confirm_ends([lease.ref]),
    "expired": lambda rig, lease: rig.leases.expired(),
    "fill": lambda rig, lease: rig.leases.fill(),
    "free_slot": lambda rig, lease: rig.leases.free_slot(lease.slot),
    "quarantine": lambda rig, lease: rig.leases.quarantine(lease.slot, "a"),
    "configure_server": lambda rig, lease: rig.server(),
    "set_paused_tenants": lambda rig, lease: rig.leases.set_paused_tenants(POOL, ["t1"]),
    "has_tickets": lambda rig, lease: rig.in_line("running"),
    "is_held": lambda rig, lease: rig.leases.is_held(lease.ref),
    "granted": lambda rig, lease: rig.leases.granted(lease.attempt_id, worker="w1"),
    "slots": lambda rig, lease: rig.leases.slots("s1"),
    "depth": lambda rig, lease: rig.leases.depth(POOL),
}


@pytest.mark.parametrize("call", CALLS)
def test_without_a_generation_everything_is_refused(lost: tuple[Rig, Lease, Lease], call: str) -> None:
    rig, running, _ = lost
    assert rig.leases.generation() is None
    assert rig.leases.generation_age_seconds() is None
    with pytest.raises(LeasingUnavailable, match="no generation"):
        CALLS[call](rig, running)
    assert rig.all_keys() == set()


@pytest.mark.parametrize("call", CALLS)
def test_while_the_old_index_is_wiped_everything_is_refused(rig: Rig, call: str) -> None:
    rig.server()
    rig.push("running")
    lease = rig.must_claim()
    rig.leases.begin_rebuild("one")
    with pytest.raises(LeasingUnavailable, match="being rebuilt"):
        CALLS[call](rig, lease)


def test_no_lease_while_the_index_is_filled(rig: Rig) -> None:
    begin(rig)
    assert rig.server(slots=2) == ()
    rig.leases.quarantine("s1/1", "old")
    pushed = rig.leases.push(POOL, [rig.ticket("j1"), rig.ticket("j2")])
    assert [result.outcome for result in pushed.results] == [PushOutcome.LEASED, PushOutcome.QUEUED]
    assert pushed.wakes == ()
    assert rig.leases.free_slot("s1/1") == ()
    assert rig.in_line("j1")
    with pytest.raises(LeasingUnavailable, match="being rebuilt"):
        rig.claim()
    generation = rig.leases.open_generation("one")
    assert rig.leases.generation() == generation
    rig.wait(7)
    assert rig.leases.generation_age_seconds() == 7.0
    assert rig.must_claim().job_id == "j1"


def test_a_release_during_a_rebuild_claims_nothing(rig: Rig) -> None:
    begin(rig)
    rig.server()
    rig.push("waiting")
    assert rig.leases.restore_lease(database_lease())
    rig.leases.release(database_lease().ref, ReleaseMode.ENDED, worker="w1", next_attempt_id="next")
    assert rig.states() == ["settling"]
    assert rig.in_line("waiting")


def test_wiping_deletes_all_keys_in_bounded_steps(rig: Rig) -> None:
    rig.server("s1", slots=3, models=("flux", "zimg"))
    rig.server("s2", slots=2, host="box-1", pool="other")
    rig.leases.quarantine("unknown/0", "old")
    rig.tenant("t1", weight=2.0)
    for number in range(60):
        rig.push(f"j{number}", tenant=f"t{number}", model="zimg" if number % 2 else "flux", avoid="s1")
        rig.push(f"b{number}", tenant=f"t{number}", priority=9)
    leases = [rig.must_claim() for _ in range(3)]
    rig.leases.set_paused_tenants(POOL, [f"t{number}" for number in range(20)])
    rig.leases.set_paused_tenants("third", ["t1"])
    rig.release(leases[0])
    rig.release(leases[1], "adopt")
    rig.leases.rest_server("s2", 100)
    rig.leases.expired()
    rig.leases.begin_rebuild("one")
    steps = 1
    while not rig.leases.wipe("one", max_keys=100):
        steps += 1
    assert steps > 2
    assert rig.all_keys() == {"rebuild"}


def test_one_owner_rebuilds_until_its_heartbeat_stops(rig: Rig) -> None:
    assert rig.leases.begin_rebuild("one")
    assert rig.leases.begin_rebuild("one")
    assert not rig.leases.begin_rebuild("two")
    rig.wait(4)
    assert rig.leases.wipe("one")
    rig.wait(4)
    assert not rig.leases.begin_rebuild("two")
    rig.wait(10)
    assert rig.leases.begin_rebuild("two")
    with pytest.raises(LeasingUnavailable, match="another process"):
        rig.leases.wipe("one")
    with pytest.raises(LeasingUnavailable, match="another process"):
        rig.leases.open_generation("one")


def test_an_index_that_is_not_wiped_cannot_be_opened(rig: Rig) -> None:
    rig.leases.begin_rebuild("one")
    with pytest.raises(LeasingUnavailable, match="not wiped"):
        rig.leases.open_generation("one")


def test_opening_twice_gives_the_same_generation(rig: Rig) -> None:
    begin(rig)
    assert rig.leases.open_generation("one") == rig.leases.open_generation("one")


# -- leases come back -------------------------------------------------------------------------------------
