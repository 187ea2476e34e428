"""A flushed, new or failed-over Redis: nothing is leased until the index was made anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpus.errors import LeasingUnavailable
from gpus.protocol import Lease, PushOutcome, ReleaseMode

from .rig import POOL, Rig


def lose_index(rig: Rig) -> None:
    """As FLUSHALL does, without hurting other tests on the same server."""
    rig.client.delete(*(rig.prefix + name for name in rig.all_keys()))


def begin(rig: Rig) -> None:
    assert rig.leases.begin_rebuild("one")
    assert rig.leases.wipe("one")


@pytest.fixture
def lost(rig: Rig) -> tuple[Rig, Lease, Lease]:
    """An index that was lost while one job ran and another one's end was not committed yet."""
    rig.server(slots=2)
    rig.push("running", "ending")
    running, ending = rig.must_claim(), rig.must_claim()
    rig.release(ending)
    lose_index(rig)
    return rig, running, ending


CALLS: dict[str, Callable[[Rig, Lease], Any]] = {
    "claim": lambda rig, lease: rig.claim(),
    "push": lambda rig, lease: rig.push("new"),
    "remove": lambda rig, lease: rig.leases.remove(POOL, rig.ticket("j")),
    "release": lambda rig, lease: rig.release(lease),
    "renew": lambda rig, lease: rig.leases.renew("w1", [lease], []),
    "settled": lambda rig, lease: rig.leases.settled([lease.ref]),
    "expired": lambda rig, lease: rig.leases.expired(),
    "fill": lambda rig, lease: rig.leases.fill(),
    "free_slot": lambda rig, lease: rig.leases.free_slot(lease.slot),
    "quarantine": lambda rig, lease: rig.leases.quarantine(lease.slot, "a"),
    "configure_server": lambda rig, lease: rig.server(),
    "set_paused_tenants": lambda rig, lease: rig.leases.set_paused_tenants(POOL, ["t1"]),
    "has_tickets": lambda rig, lease: rig.in_line("running"),
    "is_held": lambda rig, lease: rig.leases.is_held(lease.ref),
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


def test_while_it_is_being_filled_nothing_is_leased(rig: Rig) -> None:
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


def test_a_release_during_a_rebuild_hands_nothing_on(rig: Rig) -> None:
    begin(rig)
    rig.server()
    rig.push("waiting")
    assert rig.leases.restore_lease(database_lease())
    rig.leases.release(database_lease().ref, ReleaseMode.SETTLE, worker="w1", next_attempt_id="next")
    assert rig.states() == ["settling"]
    assert rig.in_line("waiting")


def test_wiping_leaves_nothing_and_stops_at_its_bound(rig: Rig) -> None:
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


def test_one_at_a_time_rebuilds_until_it_falls_silent(rig: Rig) -> None:
    assert rig.leases.begin_rebuild("one")
    assert rig.leases.begin_rebuild("one")
    assert not rig.leases.begin_rebuild("two")
    rig.wait(4)
    assert rig.leases.wipe("one")
    rig.wait(4)
    assert not rig.leases.begin_rebuild("two")
    rig.wait(10)
    assert rig.leases.begin_rebuild("two")
    with pytest.raises(LeasingUnavailable, match="somebody else"):
        rig.leases.wipe("one")
    with pytest.raises(LeasingUnavailable, match="somebody else"):
        rig.leases.open_generation("one")


def test_an_index_that_is_not_wiped_cannot_be_opened(rig: Rig) -> None:
    rig.leases.begin_rebuild("one")
    with pytest.raises(LeasingUnavailable, match="not wiped"):
        rig.leases.open_generation("one")


def test_opening_twice_gives_the_same_generation(rig: Rig) -> None:
    begin(rig)
    assert rig.leases.open_generation("one") == rig.leases.open_generation("one")


# -- leases come back -------------------------------------------------------------------------------------


def database_lease(attempt: str = "att", *, slot: str = "s1/0", job: str = "job", at_s: int = 0) -> Lease:
    """As the rebuild makes it from a live attempt's row."""
    at_ms = 1_700_000_000_000 + at_s * 1000
    return Lease(POOL, slot, job, attempt, 1, "flux", "t1", 5, at_ms * 1000, at_ms, 0.0)


def test_a_live_attempt_of_the_database_gets_its_slot_back_for_a_full_lease_time(rig: Rig) -> None:
    begin(rig)
    rig.server(slots=2)
    rig.push("job")
    assert rig.leases.restore_lease(database_lease())
    assert rig.leases.restore_lease(database_lease())
    assert not rig.leases.remove(POOL, rig.tickets["job"])
    rig.leases.open_generation("one")
    assert rig.states() == ["leased", "free"]
    view = rig.leases.slots("s1")[0]
    assert (view.attempt_id, view.expires_in_seconds) == ("att", 15.0)
    assert rig.leases.renew("whoever", [database_lease()], []) == []
    assert rig.leases.renew("another", [database_lease()], []) == [database_lease().ref]


def test_a_restored_lease_keeps_the_fence_growing(rig: Rig) -> None:
    begin(rig)
    rig.server()
    fence = 2_000_000_000_000_000
    rig.leases.restore_lease(replace(database_lease(), fence=fence))
    rig.leases.open_generation("one")
    rig.leases.renew("w1", [database_lease()], [])
    rig.push("j1")
    following = rig.release(database_lease(), next_attempt_id="next")
    assert following is not None
    assert following.fence == fence + 1


def test_living_keepers_announce_what_the_database_does_not_know_yet(lost: tuple[Rig, Lease, Lease]) -> None:
    rig, running, ending = lost
    begin(rig)
    rig.server(slots=2)
    assert rig.leases.renew("w1", [running], [ending]) == []
    rig.leases.open_generation("one")
    assert rig.states() == ["leased", "settling"]
    assert rig.push("running", "ending")[0].outcome is PushOutcome.HELD
    assert rig.push("ending")[0].outcome is PushOutcome.HELD
    assert rig.leases.is_held(running.ref)
    rig.leases.settled([ending.ref])
    assert rig.states() == ["leased", "free"]
    assert not rig.in_line("ending")


def test_announcing_before_the_servers_are_known_is_enough(lost: tuple[Rig, Lease, Lease]) -> None:
    rig, running, ending = lost
    begin(rig)
    rig.leases.renew("w1", [running], [ending])
    rig.server(slots=2)
    rig.leases.open_generation("one")
    assert rig.states() == ["leased", "settling"]
    assert rig.leases.depth(POOL).slots == {"leased": 1, "settling": 1}


def test_nothing_is_announced_to_a_whole_index(lost: tuple[Rig, Lease, Lease]) -> None:
    rig, running, _ = lost
    rig.open()
    rig.server(slots=2)
    assert rig.leases.renew("w1", [running], []) == [running.ref]


def test_of_two_attempts_on_one_slot_the_later_one_holds_it(rig: Rig) -> None:
    early, late = database_lease("early", job="e"), database_lease("late", job="l", at_s=9)
    begin(rig)
    rig.server(slots=1)
    assert rig.leases.restore_lease(early)
    assert rig.leases.renew("w1", [late], []) == []
    assert not rig.leases.restore_lease(early)
    assert rig.leases.renew("w2", [early], []) == [early.ref]
    rig.leases.open_generation("one")
    assert rig.leases.slots("s1")[0].attempt_id == "late"
    assert not rig.leases.is_held(early.ref)


def test_an_announced_end_is_not_restored_as_a_lease(lost: tuple[Rig, Lease, Lease]) -> None:
    rig, _, ending = lost
    begin(rig)
    rig.server(slots=2)
    rig.leases.renew("w1", [], [ending])
    assert rig.leases.restore_lease(ending)
    assert rig.states() == ["free", "settling"]


def test_a_late_end_of_an_earlier_attempt_does_not_let_the_job_into_line(rig: Rig) -> None:
    early, late = database_lease("early", slot="s1/0"), database_lease("late", slot="s1/1", at_s=9)
    begin(rig)
    rig.server(slots=2)
    assert rig.leases.restore_lease(late)
    assert rig.leases.renew("w1", [], [early]) == []
    rig.leases.settled([early.ref])
    assert rig.states() == ["free", "leased"]
    assert rig.push("job")[0].outcome is PushOutcome.HELD


def test_of_two_epochs_of_one_attempt_the_higher_one_holds_it(rig: Rig) -> None:
    zombie, adopted = database_lease(), replace(database_lease(), epoch=2)
    begin(rig)
    rig.server()
    assert rig.leases.renew("zombie", [zombie], []) == []
    assert rig.leases.restore_lease(adopted)
    assert rig.leases.renew("zombie", [zombie], []) == [zombie.ref]
    assert rig.leases.renew("adopter", [adopted], []) == []
    assert rig.leases.is_held(adopted.ref)


def test_a_restored_lease_is_charged_when_it_ends(rig: Rig) -> None:
    begin(rig)
    rig.server()
    rig.push("mine", tenant="t1")
    rig.push(*(f"other{i}" for i in range(4)), tenant="t2")
    rig.leases.restore_lease(database_lease())
    rig.leases.open_generation("one")
    following = rig.release(database_lease(), gpu_seconds=2.5, next_attempt_id="next")
    assert following is not None
    order = [following.job_id]
    for _ in range(4):
        following = rig.next(following)
        order.append(following.job_id)
    assert order.index("mine") == 3


def test_shares_of_before_are_restored_once_per_tenant(rig: Rig) -> None:
    rig.server()
    rig.leases.begin_rebuild("again")
    rig.leases.wipe("again")
    rig.server()
    for _ in range(2):  # the step was repeated
        rig.leases.restore_shares(POOL, [(5, "greedy", 3.0)])
    rig.push("g1", "g2", "g3", tenant="greedy")
    rig.push("m1", "m2", "m3", "m4", "m5", tenant="modest")
    rig.leases.open_generation("again")
    assert rig.run_all(seconds=1.0) == ["m1", "m2", "m3", "g1", "m4", "g2", "m5", "g3"]


def test_what_was_foretold_of_a_job_that_turns_out_to_run_is_forgotten(rig: Rig) -> None:
    rig.server()
    rig.push("job0")
    running = rig.must_claim()
    begin(rig)
    rig.server()
    rig.push("job0")
    assert rig.client.hkeys(f"{rig.prefix}foretold:{POOL}"), "one job in four, of which this is one"
    assert rig.leases.restore_lease(running)
    assert not rig.client.hkeys(f"{rig.prefix}foretold:{POOL}")


def test_a_second_ticket_that_is_dropped_leaves_no_forecast(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("job0")
    running = rig.must_claim()
    rig.client.hdel(f"{rig.prefix}held", "job0")
    rig.push("job0", priority=6)
    rig.client.hset(f"{rig.prefix}held", "job0", running.attempt_id)
    assert rig.claim() is None
    assert not rig.client.hkeys(f"{rig.prefix}foretold:{POOL}")
