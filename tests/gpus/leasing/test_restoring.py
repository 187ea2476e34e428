"""What a rebuild restores: leases of rows and live keepers, and shares, but no ended leases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpus.leasing import store
from gpus.protocol import Lease, PushOutcome
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness
from tests.gpus.leasing.rebuild_harness import begin, database_lease, lose_index, lost

__all__ = ["lost"]


def test_a_live_attempt_of_the_database_gets_its_slot_back_for_a_full_lease_time(
    harness: LeaseHarness,
) -> None:
    begin(harness)
    harness.server(slots=2)
    harness.push("job")
    assert harness.leases.restore_lease(database_lease())
    assert harness.leases.restore_lease(database_lease())
    assert not harness.leases.remove(POOL, harness.tickets["job"])
    harness.leases.open_generation("one")
    assert harness.states() == ["leased", "free"]
    view = harness.leases.slots("s1")[0]
    assert (view.attempt_id, view.expires_in_seconds) == ("att", 15.0)
    assert harness.leases.renew("another-worker", [database_lease()], []) == []
    assert harness.leases.renew("another", [database_lease()], []) == [database_lease().ref]


def test_a_restored_lease_keeps_the_fence_growing(harness: LeaseHarness) -> None:
    begin(harness)
    harness.server()
    fence = 2_000_000_000_000_000
    harness.leases.restore_lease(replace(database_lease(), fence=fence))
    harness.leases.open_generation("one")
    harness.leases.renew("w1", [database_lease()], [])
    harness.push("j1")
    following = harness.release(database_lease(), next_attempt_id="next")
    assert following is not None
    assert following.fence == fence + 1


def test_live_keepers_restore_leases_unknown_to_the_database(lost: tuple[LeaseHarness, Lease, Lease]) -> None:
    harness, running, ending = lost
    begin(harness)
    harness.server(slots=2)
    assert harness.leases.renew("w1", [running], [ending]) == []
    harness.leases.open_generation("one")
    assert harness.states() == ["leased", "settling"]
    assert harness.push("running", "ending")[0].outcome is PushOutcome.HELD
    assert harness.push("ending")[0].outcome is PushOutcome.HELD
    assert harness.leases.is_held(running.ref)
    harness.leases.confirm_ends([ending.ref])
    assert harness.states() == ["leased", "free"]
    assert not harness.in_line("ending")


def test_more_than_redis_should_do_at_once_is_renewed_piece_by_piece(
    harness: LeaseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_LEASES_PER_CALL", 2)
    harness.server(slots=5)
    harness.push(*"abcde")
    leases = [harness.must_claim() for _ in range(5)]
    running, ending = leases[:3], leases[3:]
    for lease in ending:
        harness.release(lease)
    lose_index(harness)
    begin(harness)
    harness.server(slots=5)
    sent, run = list[int](), harness.leases._run

    def count_and_run(script: str, **args: Any) -> Any:
        if script == "renew":
            sent.append(len(args["held"]))
        return run(script, **args)

    monkeypatch.setattr(harness.leases, "_run", count_and_run)
    assert harness.leases.renew("w1", running, ending) == []
    assert sent == [2, 2, 1]
    harness.leases.open_generation("one")
    assert harness.states() == ["leased"] * 3 + ["settling"] * 2
    harness.leases.confirm_ends([ending[1].ref])
    harness.release(running[2], "free")
    assert harness.leases.renew("w1", running, ending) == [running[2].ref, ending[1].ref]


def test_announcing_before_the_servers_are_known_is_enough(lost: tuple[LeaseHarness, Lease, Lease]) -> None:
    harness, running, ending = lost
    begin(harness)
    harness.leases.renew("w1", [running], [ending])
    harness.server(slots=2)
    harness.leases.open_generation("one")
    assert harness.states() == ["leased", "settling"]
    assert harness.leases.depth(POOL).slots == {"leased": 1, "settling": 1}


def test_a_whole_index_restores_no_lease(lost: tuple[LeaseHarness, Lease, Lease]) -> None:
    harness, running, _ = lost
    harness.open()
    harness.server(slots=2)
    assert harness.leases.renew("w1", [running], []) == [running.ref]


def test_the_later_of_two_attempts_holds_the_slot(harness: LeaseHarness) -> None:
    early, late = database_lease("early", job="e"), database_lease("late", job="l", at_s=9)
    begin(harness)
    harness.server(slots=1)
    assert harness.leases.restore_lease(early)
    assert harness.leases.renew("w1", [late], []) == []
    assert not harness.leases.restore_lease(early)
    assert harness.leases.renew("w2", [early], []) == [early.ref]
    harness.leases.open_generation("one")
    assert harness.leases.slots("s1")[0].attempt_id == "late"
    assert not harness.leases.is_held(early.ref)


def test_an_announced_end_is_not_restored_as_a_lease(lost: tuple[LeaseHarness, Lease, Lease]) -> None:
    harness, _, ending = lost
    begin(harness)
    harness.server(slots=2)
    harness.leases.renew("w1", [], [ending])
    assert harness.leases.restore_lease(ending)
    assert harness.states() == ["free", "settling"]


def test_a_committed_end_is_forgotten_after_a_renewal_restored_it(
    lost: tuple[LeaseHarness, Lease, Lease],
) -> None:
    """Its release came before the renewal, to an index that did not know the lease yet."""
    harness, running, _ = lost
    begin(harness)
    harness.server(slots=2)
    assert harness.release(running) is None
    assert harness.leases.renew("w1", [running], []) == []
    harness.leases.confirm_ends([running.ref])
    harness.leases.open_generation("one")
    assert harness.states() == ["free", "free"]
    assert not harness.leases.is_held(running.ref)
    assert harness.push("running")[0].outcome is not PushOutcome.HELD


def test_a_late_end_of_an_earlier_attempt_does_not_let_the_job_into_line(harness: LeaseHarness) -> None:
    early, late = database_lease("early", slot="s1/0"), database_lease("late", slot="s1/1", at_s=9)
    begin(harness)
    harness.server(slots=2)
    assert harness.leases.restore_lease(late)
    assert harness.leases.renew("w1", [], [early]) == []
    harness.leases.confirm_ends([early.ref])
    assert harness.states() == ["free", "leased"]
    assert harness.push("job")[0].outcome is PushOutcome.HELD


def test_the_higher_of_two_epochs_holds_the_slot(harness: LeaseHarness) -> None:
    zombie, adopted = database_lease(), replace(database_lease(), epoch=2)
    begin(harness)
    harness.server()
    assert harness.leases.renew("zombie", [zombie], []) == []
    assert harness.leases.restore_lease(adopted)
    assert harness.leases.renew("zombie", [zombie], []) == [zombie.ref]
    assert harness.leases.renew("adopter", [adopted], []) == []
    assert harness.leases.is_held(adopted.ref)


def test_a_restored_lease_is_charged_when_it_ends(harness: LeaseHarness) -> None:
    begin(harness)
    harness.server()
    harness.push("mine", tenant="t1")
    harness.push(*(f"other{i}" for i in range(4)), tenant="t2")
    harness.leases.restore_lease(database_lease())
    harness.leases.open_generation("one")
    following = harness.release(database_lease(), gpu_seconds=2.5, next_attempt_id="next")
    assert following is not None
    order = [following.job_id]
    for _ in range(4):
        following = harness.next(following)
        order.append(following.job_id)
    assert order.index("mine") == 3


def test_shares_of_before_are_restored_once_per_tenant(harness: LeaseHarness) -> None:
    harness.server()
    harness.leases.begin_rebuild("again")
    harness.leases.wipe("again")
    harness.server()
    for _ in range(2):  # the step was repeated
        harness.leases.restore_shares(POOL, [(5, "greedy", 3.0)])
    harness.push("g1", "g2", "g3", tenant="greedy")
    harness.push("m1", "m2", "m3", "m4", "m5", tenant="modest")
    harness.leases.open_generation("again")
    assert harness.run_all(seconds=1.0) == ["m1", "m2", "m3", "g1", "m4", "g2", "m5", "g3"]


def test_a_restored_job_deletes_its_forecast(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("job0")
    running = harness.must_claim()
    begin(harness)
    harness.server()
    harness.push("job0")
    assert harness.client.hkeys(f"{harness.prefix}foretold:{POOL}"), "one job in four, of which this is one"
    assert harness.leases.restore_lease(running)
    assert not harness.client.hkeys(f"{harness.prefix}foretold:{POOL}")


def test_a_second_ticket_that_is_dropped_leaves_no_forecast(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("job0")
    running = harness.must_claim()
    harness.client.hdel(f"{harness.prefix}held", "job0")
    harness.push("job0", priority=6)
    harness.client.hset(f"{harness.prefix}held", "job0", running.attempt_id)
    assert harness.claim() is None
    assert not harness.client.hkeys(f"{harness.prefix}foretold:{POOL}")
