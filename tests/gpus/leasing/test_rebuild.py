"""A flushed, new or failed-over Redis grants no lease before the index is rebuilt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpus.errors import LeasingUnavailable
from gpus.protocol import Lease, PushOutcome, ReleaseMode
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness
from tests.gpus.leasing.rebuild_harness import begin, database_lease, lost

__all__ = ["lost"]

CALLS: dict[str, Callable[[LeaseHarness, Lease], Any]] = {
    "claim": lambda harness, lease: harness.claim(),
    "push": lambda harness, lease: harness.push("new"),
    "remove": lambda harness, lease: harness.leases.remove(POOL, harness.ticket("j")),
    "release": lambda harness, lease: harness.release(lease),
    "renew": lambda harness, lease: harness.leases.renew("w1", [lease], []),
    "confirm_ends": lambda harness, lease: harness.leases.confirm_ends([lease.ref]),
    "expired": lambda harness, lease: harness.leases.expired(),
    "fill": lambda harness, lease: harness.leases.fill(),
    "free_slot": lambda harness, lease: harness.leases.free_slot(lease.slot),
    "quarantine": lambda harness, lease: harness.leases.quarantine(lease.slot, "a"),
    "configure_server": lambda harness, lease: harness.server(),
    "set_paused_tenants": lambda harness, lease: harness.leases.set_paused_tenants(POOL, ["t1"]),
    "has_tickets": lambda harness, lease: harness.in_line("running"),
    "is_held": lambda harness, lease: harness.leases.is_held(lease.ref),
    "granted": lambda harness, lease: harness.leases.granted(lease.attempt_id, worker="w1"),
    "slots": lambda harness, lease: harness.leases.slots("s1"),
    "depth": lambda harness, lease: harness.leases.depth(POOL),
}


@pytest.mark.parametrize("call", CALLS)
def test_without_a_generation_everything_is_refused(
    lost: tuple[LeaseHarness, Lease, Lease], call: str
) -> None:
    harness, running, _ = lost
    assert harness.leases.generation() is None
    assert harness.leases.generation_age_seconds() is None
    with pytest.raises(LeasingUnavailable, match="no generation"):
        CALLS[call](harness, running)
    assert harness.all_keys() == set()


@pytest.mark.parametrize("call", CALLS)
def test_while_the_old_index_is_wiped_everything_is_refused(harness: LeaseHarness, call: str) -> None:
    harness.server()
    harness.push("running")
    lease = harness.must_claim()
    harness.leases.begin_rebuild("one")
    with pytest.raises(LeasingUnavailable, match="being rebuilt"):
        CALLS[call](harness, lease)


def test_no_lease_while_the_index_is_filled(harness: LeaseHarness) -> None:
    begin(harness)
    assert harness.server(slots=2) == ()
    harness.leases.quarantine("s1/1", "old")
    pushed = harness.leases.push(POOL, [harness.ticket("j1"), harness.ticket("j2")])
    assert [result.outcome for result in pushed.results] == [PushOutcome.LEASED, PushOutcome.QUEUED]
    assert pushed.wakes == ()
    assert harness.leases.free_slot("s1/1") == ()
    assert harness.in_line("j1")
    with pytest.raises(LeasingUnavailable, match="being rebuilt"):
        harness.claim()
    generation = harness.leases.open_generation("one")
    assert harness.leases.generation() == generation
    harness.wait(7)
    assert harness.leases.generation_age_seconds() == 7.0
    assert harness.must_claim().job_id == "j1"


def test_a_release_during_a_rebuild_claims_nothing(harness: LeaseHarness) -> None:
    begin(harness)
    harness.server()
    harness.push("waiting")
    assert harness.leases.restore_lease(database_lease())
    harness.leases.release(database_lease().ref, ReleaseMode.ENDED, worker="w1", next_attempt_id="next")
    assert harness.states() == ["settling"]
    assert harness.in_line("waiting")


def test_wiping_deletes_all_keys_in_bounded_steps(harness: LeaseHarness) -> None:
    harness.server("s1", slots=3, models=("flux", "zimg"))
    harness.server("s2", slots=2, host="box-1", pool="other")
    harness.leases.quarantine("unknown/0", "old")
    harness.tenant("t1", weight=2.0)
    for number in range(60):
        harness.push(f"j{number}", tenant=f"t{number}", model="zimg" if number % 2 else "flux", avoid="s1")
        harness.push(f"b{number}", tenant=f"t{number}", priority=9)
    leases = [harness.must_claim() for _ in range(3)]
    harness.leases.set_paused_tenants(POOL, [f"t{number}" for number in range(20)])
    harness.leases.set_paused_tenants("third", ["t1"])
    harness.release(leases[0])
    harness.release(leases[1], "adopt")
    harness.leases.rest_server("s2", 100)
    harness.leases.expired()
    harness.leases.begin_rebuild("one")
    steps = 1
    while not harness.leases.wipe("one", max_keys=100):
        steps += 1
    assert steps > 2
    assert harness.all_keys() == {"rebuild"}


def test_one_owner_rebuilds_until_its_heartbeat_stops(harness: LeaseHarness) -> None:
    assert harness.leases.begin_rebuild("one")
    assert harness.leases.begin_rebuild("one")
    assert not harness.leases.begin_rebuild("two")
    harness.wait(4)
    assert harness.leases.wipe("one")
    harness.wait(4)
    assert not harness.leases.begin_rebuild("two")
    harness.wait(10)
    assert harness.leases.begin_rebuild("two")
    with pytest.raises(LeasingUnavailable, match="another process"):
        harness.leases.wipe("one")
    with pytest.raises(LeasingUnavailable, match="another process"):
        harness.leases.open_generation("one")


def test_an_index_that_is_not_wiped_cannot_be_opened(harness: LeaseHarness) -> None:
    harness.leases.begin_rebuild("one")
    with pytest.raises(LeasingUnavailable, match="not wiped"):
        harness.leases.open_generation("one")


def test_opening_twice_gives_the_same_generation(harness: LeaseHarness) -> None:
    begin(harness)
    assert harness.leases.open_generation("one") == harness.leases.open_generation("one")


# -- leases come back -------------------------------------------------------------------------------------
